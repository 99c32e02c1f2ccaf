"""The real command line on a real model: float32 rows are the same however the run went."""

import json
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.configs import ROOT
from tests.run.test_executor import stable
from tests.test_run import command, run

LINE = (
    "task=crossword",
    "backend=hf",
    "backend.device=cpu",
    "model=local",
    "cue=[wait,neutral]",
    "quantization=fp32",
    "backend.slots=16",
    "run.limit=3",
    "sampling.num_samples=2",
    "sampling.think_cap=16",
    "sampling.answer_cap=6",
)


@pytest.fixture(scope="module")
def line(tiny_llama: Callable[..., Path]) -> list[str]:
    return [*LINE, f"model.path={tiny_llama(initializer_range=0.1)}"]


@pytest.fixture(scope="module")
def undisturbed(line: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("whole")
    run(*line, f"run.root={folder}")
    return rows_in(folder)


def rows_in(folder: Path) -> list[dict[str, Any]]:
    (path,) = folder.rglob("step*.jsonl")
    rows = [stable(json.loads(text)) for text in path.open(encoding="utf-8")]
    return sorted(rows, key=lambda row: (row["example_id"], row["sample_idx"]))


def same(value: Any, other: Any) -> bool:
    """Equal, numbers within 1e-5: batches of another shape add up in another order."""
    if isinstance(value, float) and isinstance(other, float):
        return value == pytest.approx(other, abs=1e-4)
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(same(value[k], other[k]) for k in value)
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(same, value, other))
    return bool(value == other)


def differences(rows: list[dict[str, Any]], others: list[dict[str, Any]]) -> list[str]:
    """Names of the passes and columns that differ, for a readable failure."""
    assert len(rows) == len(others)
    pairs = zip(rows, others, strict=True)
    return [f"{a['example_id']}.{k}" for a, b in pairs for k in a if not same(a[k], b.get(k))]


@pytest.mark.parametrize("size", [1, 3])
def test_rows_do_not_depend_on_the_number_of_slots_or_on_order(
    tmp_path: Path, line: list[str], undisturbed: list[dict[str, Any]], size: int
) -> None:
    ids = sorted({row["example_id"] for row in undisturbed})
    whole = [part for part in line if not part.startswith("run.limit")]
    order = [f"run.ids=[{','.join(ids)}]", f"run.shuffle_seed={size}"]
    run(*whole, *order, f"backend.slots={size}", f"run.root={tmp_path}")
    assert differences(rows_in(tmp_path), undisturbed) == []


def test_rows_after_three_kills_and_resumes_equal_an_undisturbed_run(
    tmp_path: Path, line: list[str], undisturbed: list[dict[str, Any]]
) -> None:
    cut = [*line, "backend.slots=2", f"run.root={tmp_path}"]
    quiet, draw = subprocess.DEVNULL, random.Random(7)
    for _ in range(3):
        before = generations_in(tmp_path)
        with subprocess.Popen(command(*cut), cwd=ROOT, stdout=quiet, stderr=quiet) as process:
            wait_for_generations(tmp_path, before + draw.randint(1, 3))
            time.sleep(draw.random() / 20)
            process.kill()
    run(*cut)
    assert differences(rows_in(tmp_path), undisturbed) == []
    (record,) = tmp_path.rglob("run.json")
    assert len(json.loads(record.read_text())["attempts"]) == 4


def generations_in(folder: Path) -> int:
    """Generations on disk: six in a whole row, and those of unfinished traces."""
    rows = sum(6 * f.read_bytes().count(b"\n") for f in folder.rglob("step*.jsonl"))
    held = sum(f.read_bytes().count(b"\n") for f in folder.rglob("journal-*.jsonl"))
    return max(rows, held)


def wait_for_generations(folder: Path, count: int) -> None:
    for _ in range(3000):
        if generations_in(folder) >= count:
            return
        time.sleep(0.02)
    raise AssertionError(f"fewer than {count} generations in {folder} after 60 s")


def test_every_row_names_the_precision_it_was_made_in(undisturbed: list[dict[str, Any]]) -> None:
    assert {row["quantization"] for row in undisturbed} == {"fp32"}


def test_a_prompt_over_max_length_is_cut_and_its_row_says_so(
    tmp_path: Path, line: list[str]
) -> None:
    run(*line, "model.max_length=64", "run.limit=1", f"run.root={tmp_path}")
    for row in rows_in(tmp_path):
        assert row["pass1"]["prompt_tokens"] == 64 and row["pass1"]["prompt_cut"] > 0


def test_the_dry_run_shows_special_tokens_without_loading_the_model(
    tmp_path: Path, line: list[str]
) -> None:
    done = run(*line, "run.dry=true", f"run.root={tmp_path}")
    assert "<|im_start|>system" in done.stdout and "<think>" in done.stdout
    assert "Loading weights" not in done.stderr
