"""What the code composes and writes now equals tests/golden; `make golden` rewrites it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from launch import api
from launch.config.compose import to_spec
from launch.config.setup import setup_of
from pipeline.store.files import Row, read_lines
from tests.fakes.configs import ROOT, composed
from tests.run.test_executor import stable

Golden = Callable[[str, str], None]

EXPERIMENTS = sorted(path.stem for path in (ROOT / "conf/experiment").glob("*.yaml"))
LINES = {
    "math": ["task=math"],
    "crossword": ["task=crossword"],
    "carpark": ["task=carpark"],
    **{f"experiment/{name}": [f"experiment={name}"] for name in EXPERIMENTS},
}
CLUES = (
    {
        "id": "stone",
        "clue": "Notes played as a rock",
        "answer": "STONE",
        "enumeration": "5",
        "setter": "Puck",
    },
    {"id": "idol", "clue": "Dog turned round for an idol", "answer": "GOD", "enumeration": "3"},
)


@pytest.mark.parametrize("name", LINES)
def test_composed_config_is_the_reviewed_one(name: str, golden: Golden) -> None:
    golden(f"conf/{name}.yaml", reviewed(LINES[name]))


def reviewed(line: list[str]) -> str:
    """The composed run, and what Hydra is told to sweep."""
    told = composed(*line, with_hydra=True).hydra
    text = f"# {' '.join(line)}\n" + OmegaConf.to_yaml(composed(*line))
    if told.sweeper.params:
        params = OmegaConf.to_yaml(told.sweeper.params)
        text += f"# sweep ({told.mode.name})\n" + "".join(f"#   {p}\n" for p in params.splitlines())
    return text


def test_an_experiment_names_no_launcher() -> None:
    for name in EXPERIMENTS:
        text = (ROOT / f"conf/experiment/{name}.yaml").read_text()
        assert "launcher" not in text and "cluster" not in text, name


def test_the_command_line_beats_an_experiment() -> None:
    spec = to_spec(composed("experiment=temperatures", "task=carpark", "sampling.num_samples=3"))
    assert spec.task["name"] == "carpark" and spec.sampling.num_samples == 3


def test_a_sweep_experiment_is_the_whole_command(tmp_path: Path) -> None:
    line = ["experiment=temperatures", "task=crossword", "backend=echo", "run.limit=1"]
    command = [sys.executable, "launch/run.py", *line, f"run.root={tmp_path}"]
    here = {**os.environ, "PYTHONPATH": str(ROOT)}  # this tree, whichever is installed
    subprocess.run(command, cwd=ROOT, env=here, check=True, capture_output=True, timeout=120)
    folders = sorted(path.parent.parent.name for path in tmp_path.rglob("run.json"))
    found = [re.findall(r"-T([\d.]+)-", name)[0] for name in folders]
    assert sorted(found) == ["0", "0.05", "0.3", "0.7"]


def test_rows_of_an_echo_run_are_the_reviewed_ones(tmp_path: Path, golden: Golden) -> None:
    data = tmp_path / "clues.jsonl"
    data.write_text("".join(json.dumps(clue) + "\n" for clue in CLUES))
    line = ["task=crossword", "backend=echo", "cue=[wait,neutral]", "sampling.num_samples=2"]
    line += ["sampling.think_cap=60", f"task.data.path={data}", f"run.root={tmp_path}"]
    outcome = api.run(setup_of(composed(*line), line))
    assert outcome.status == 0
    rows = [row for _, row in read_lines(outcome.point.rows_path) if row is not None]
    golden("rows/echo.txt", "\n".join(shown(row) for row in rows))


def shown(row: Row) -> str:
    """A row, one field a line, so that a difference is one line."""
    return "".join(f"{name}: {text}\n" for name, text in flat(stable(row), ""))


def flat(value: Any, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from flat(inner, f"{name}.{key}".lstrip("."))
    else:
        yield name, json.dumps(value, ensure_ascii=False)
