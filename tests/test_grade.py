"""The grading door: a JSON line per pair, for every task with gold."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launch.grade import grade_pairs, grader
from pipeline.spec import SpecError
from tests.fakes.configs import ROOT

TASKS = sorted(path.stem for path in (ROOT / "conf" / "task").glob("*.yaml"))
LEGACY = sorted(f"legacy/{path.stem}" for path in (ROOT / "conf" / "task" / "legacy").iterdir())


def door(*settings: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "launch/grade.py", *settings]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def pairs(tmp_path: Path, *rows: object) -> Path:
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_the_door_prints_equal_reason_and_time_per_line(tmp_path: Path) -> None:
    path = pairs(
        tmp_path,
        {"gold": "1/2", "pred": r"so \boxed{0.5}"},
        {"gold": "5", "pred": "15"},
        {"gold": "5", "pred": None},
        {"gold": "x", "pred": "9^{9^{9^9}}"},
    )
    done = door("task=math", f"pairs={path}", "task.grading_seconds=1")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["equal"] for line in lines] == [True, False, False, False]
    assert all(set(line) == {"equal", "reason", "seconds", "limit"} for line in lines)
    assert [line["limit"] for line in lines] == [None, None, None, "timeout"]
    assert lines[2]["reason"] == "no answer" and "longer than 1 s" in lines[3]["reason"]


@pytest.mark.parametrize("name", ["math", "crossword", "carpark", "qa"])
def test_every_kind_of_task_can_be_asked(tmp_path: Path, name: str) -> None:
    gold, wrong = ("Bv1,A>1", "Bv2") if name == "carpark" else ("A", "B")
    rows = [{"gold": gold, "pred": gold}, {"gold": gold, "pred": wrong}]
    verdicts = list(grade_pairs(grader([f"task={name}"]), str(pairs(tmp_path, *rows))))
    assert [verdict["equal"] for verdict in verdicts] == [True, False]
    assert all(verdict["reason"] and verdict["seconds"] >= 0 for verdict in verdicts)


@pytest.mark.parametrize("name", [name for name in [*TASKS, *LEGACY] if name != "prompts"])
def test_every_task_with_gold_has_a_grader(name: str) -> None:
    assert callable(grader([f"task={name}"]).grade)


def test_moves_are_judged_on_the_lines_board(tmp_path: Path) -> None:
    board = {"gold": "Bv2,A>1", "board": "oAABCooBCoooDDoo"}
    preds = ["Bv1,A>1", "Bv2", "A>1", "Bv1,Bv1,A>1", "left"]
    path = pairs(tmp_path, *({**board, "pred": pred} for pred in preds))
    verdicts = list(grade_pairs(grader(["task=carpark"]), str(path)))
    assert [verdict["equal"] for verdict in verdicts] == [True, False, False, False, False]
    assert len({verdict["reason"] for verdict in verdicts}) == 5


@pytest.mark.parametrize(
    ("row", "names"),
    [({"pred": "1"}, "gold"), ({"gold": "1", "pred": 1}, "pred"), ("text", "JSON object")],
)
def test_a_bad_pair_is_named(tmp_path: Path, row: object, names: str) -> None:
    path = pairs(tmp_path, {"gold": "1", "pred": "1"}, row)
    done = door("task=crossword", f"pairs={path}")
    assert done.returncode == 2 and f"{path}:2" in done.stderr and names in done.stderr
    assert "Traceback" not in done.stderr


def test_a_task_without_gold_is_refused() -> None:
    with pytest.raises(SpecError, match="no gold"):
        grader(["task=prompts"])


def test_an_unknown_task_lists_the_tasks(tmp_path: Path) -> None:
    done = door("task=mth", f"pairs={pairs(tmp_path, {'gold': '1', 'pred': '1'})}")
    assert done.returncode == 2 and "crossword" in done.stderr and "Traceback" not in done.stderr


def test_a_missing_file_or_setting_is_refused() -> None:
    assert "none.jsonl" in door("task=math", "pairs=none.jsonl").stderr
    assert door("task=math").returncode == 2
    assert (
        "task.gradng_seconds"
        in door("task=math", "pairs=none.jsonl", "+task.gradng_seconds=1").stderr
    )


@pytest.mark.parametrize("name", ["nowhere.jsonl", "pairs.md"])
def test_a_file_that_is_not_there_or_not_read_is_blamed_on_pairs(tmp_path: Path, name: str) -> None:
    (tmp_path / "pairs.md").touch()
    done = door("task=math", f"pairs={tmp_path / name}")
    assert done.returncode == 2 and done.stderr.startswith("error: pairs must ")
    assert name in done.stderr and "task.data" not in done.stderr
