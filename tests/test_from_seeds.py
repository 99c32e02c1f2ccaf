"""docs/from_seeds.md answers every name of the seeds, and what it calls done is there."""

import json
import pkgutil
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from launch import api
from launch.config.compose import to_spec
from launch.config.setup import setup_of
from pipeline.spec import SpecError
from tests.fakes.configs import ROOT, composed
from tests.seed_names import NAMES

DOCUMENT = ROOT / "docs/from_seeds.md"
HEADER = ["seed name", "ours", "state"]
SUBJECTS = {
    "BDH",
    "Mini-LLM",
    "Slurm",
    "ZeRO-3 checkpoints",
    "backfill",
    "chat and streaming",
    "decoder",
    "fine-tuner's inferencer",
    "gateways",
    "memory-augmented models",
    "quantization and export",
    "summaries and report",
    "tasks",
}
TASKS = ("math", "crossword", "carpark")
OVERRIDE = re.compile(r"[+~]?[a-z][\w./@]*=")
FIELD = re.compile(r"(row|pass\w+)\.(\w+)")
RUN_FILE = re.compile(r"(run\.json|config\.yaml|overrides\.yaml|log\.txt|step\d+_\w+\.jsonl)(:.+)?")
NOTICED = (
    AssertionError,
    AttributeError,
    KeyError,
    HydraException,
    OmegaConfBaseException,
    SpecError,
)
OBJECT = re.compile(r"(pipeline|components|launch)(\.\w+)+")


@dataclass(frozen=True)
class Answer:
    """One line of a table."""

    line: int
    seed: str
    names: tuple[str, ...]
    ours: tuple[str, ...]
    state: str

    @property
    def done(self) -> bool:
        return self.state == "done"


def ticked(cell: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`([^`]+)`", cell))


def parsed(text: str) -> Iterator[Answer]:
    seed, in_table = "", False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("## "):
            seed = line.split()[1]
        cells = [cell.strip() for cell in line.strip("| ").split("|")] if "|" in line else []
        if not line.startswith("|"):
            in_table = False
        elif cells == HEADER:
            in_table = True
        elif in_table and not set(line) <= set("|- "):
            assert len(line.split("|")) == 5, f"{DOCUMENT.name}:{number} must have three cells"
            name, ours, state = (cell.strip() for cell in line.split("|")[1:4])
            yield Answer(number, seed, ticked(name), ticked(ours), state)


ANSWERS = list(parsed(DOCUMENT.read_text(encoding="utf-8")))
DONE = [pytest.param(answer, id=f"line{answer.line}") for answer in ANSWERS if answer.done]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Run folders of one example of every task under four cues, with the echo backend."""
    made = []
    for task in TASKS:
        root = tmp_path_factory.mktemp(task)
        line = [f"task={task}", "backend=echo", "cue=reconsider_control", "run.limit=1"]
        outcome = api.run(setup_of(composed(*line, f"run.root={root}"), line))
        assert outcome.status == 0
        made.append(outcome.folder)
    return made


@pytest.fixture(scope="module")
def rows(folders: list[Path]) -> list[dict[str, Any]]:
    return [json.loads(next(folder.glob("step*.jsonl")).read_text()) for folder in folders]


@pytest.mark.parametrize(
    ("seed", "area"), [(seed, area) for seed, areas in NAMES.items() for area in areas]
)
def test_every_name_of_the_seeds_has_an_answer(seed: str, area: str) -> None:
    answered = {name for answer in ANSWERS if answer.seed == seed for name in answer.names}
    assert not [name for name in NAMES[seed][area] if name not in answered]


def test_every_state_is_done_planned_for_a_known_subject_or_a_reasoned_non_goal() -> None:
    for answer in ANSWERS:
        kind, _, rest = answer.state.partition(": ")
        known = {"done": rest == "", "planned": rest in SUBJECTS, "non-goal": len(rest) > 10}
        assert known.get(kind), f"{DOCUMENT.name}:{answer.line}: state {answer.state!r}"


@pytest.mark.parametrize("answer", DONE)
def test_what_is_called_done_is_there(
    answer: Answer, folders: list[Path], rows: list[dict[str, Any]]
) -> None:
    assert answer.ours, "a row that is done must name in backticks what answers it"
    for piece in answer.ours:
        check(piece, folders, rows)


def check(piece: str, folders: list[Path], rows: list[dict[str, Any]]) -> None:
    if OVERRIDE.match(piece):
        composes(shlex.split(piece))
    elif field := FIELD.fullmatch(piece):
        place, name = field.groups()
        assert any(name in (row if place == "row" else row.get(place) or {}) for row in rows), piece
    elif found := RUN_FILE.fullmatch(piece):
        in_run_folder(folders[0], found[1], (found[2] or "").lstrip(":"))
    elif OBJECT.fullmatch(piece):
        pkgutil.resolve_name(piece)
    elif "/" in piece or Path(piece).suffix in (".py", ".yaml", ".md"):
        assert (ROOT / piece).exists(), piece
    else:
        raise AssertionError(f"{piece} is nothing that this test can check; write it without ticks")


def composes(overrides: list[str]) -> None:
    """Compose, with the least that the line leaves out."""
    typed = {override.partition("=")[0] for override in overrides}
    needed = {"task": "task=math", "backend": "backend=echo"}
    to_spec(composed(*(v for k, v in needed.items() if k not in typed), *overrides))


def in_run_folder(folder: Path, name: str, keys: str) -> None:
    assert (folder / name).is_file(), name
    value: Any = json.loads((folder / name).read_text()) if keys else None
    for key in filter(None, keys.split(".")):
        value = (value[0] if isinstance(value, list) else value)[key]


@pytest.mark.parametrize(
    "piece",
    [
        "sampling.temprature=0.3",
        "task=crosswrod",
        "row.problme",
        "pass1.entorpy",
        "run.json:attempts.peak",
        "step0001_test.jsonl",
        "pipeline.run.pass_fields.nothing",
        "entropy",
        "conf/nothing/",
        "--flag",
    ],
)
def test_a_claim_that_does_not_hold_is_noticed(
    piece: str, folders: list[Path], rows: list[dict[str, Any]]
) -> None:
    with pytest.raises(NOTICED):
        check(piece, folders, rows)
