"""The boards door: solve a file, generate a set."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.configs import ROOT

BOARD = "oAABCooBCoooDDoo"


def door(*arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "launch/boards.py", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_solve_prints_each_board_with_moves_and_a_solution(tmp_path: Path) -> None:
    path = tmp_path / "boards.jsonl"
    path.write_text(
        json.dumps({"board": BOARD, "note": "kept"}) + '\n{"board": "AAxooooooooooooo"}'
    )
    done = door("solve", str(path))
    assert done.returncode == 0, done.stderr
    first, second = lines(done.stdout)
    assert first == {"board": BOARD, "note": "kept", "moves": 2, "solution": ["Bv1", "A>1"]}
    assert second["moves"] is None and second["solution"] is None


def test_a_stated_optimum_that_is_wrong_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "boards.jsonl"
    path.write_text(json.dumps({"board": BOARD, "moves": 3}))
    done = door("solve", str(path))
    assert done.returncode == 1 and f"{path}:1" in done.stderr
    assert lines(done.stdout)[0]["moves_in_file"] == 3


@pytest.mark.parametrize("row", [{"board": "oAA"}, {"bord": BOARD}, {"board": 3}])
def test_a_bad_board_is_named(tmp_path: Path, row: object) -> None:
    path = tmp_path / "boards.jsonl"
    path.write_text(json.dumps(row))
    done = door("solve", str(path))
    assert done.returncode == 2 and f"{path}:1" in done.stderr and "Traceback" not in done.stderr


def test_generate_makes_a_file_that_the_task_reads_and_solve_confirms(tmp_path: Path) -> None:
    made = door("generate", "--size", "4", "5", "--count", "3", "--seed", "9", "--walls", "2")
    assert made.returncode == 0, made.stderr
    assert (
        made.stdout
        == door(
            "generate", "--size", "4", "5", "--count", "3", "--seed", "9", "--walls", "2"
        ).stdout
    )
    rows = lines(made.stdout)
    assert [(row["size"], row["difficulty"]) for row in rows] == [
        (size, name) for size in (4, 5) for name in ("easy", "medium", "hard")
    ]
    path = tmp_path / "made.jsonl"
    path.write_text(made.stdout)
    solved = door("solve", str(path))
    assert solved.returncode == 0 and lines(solved.stdout) == rows


def test_an_impossible_set_is_refused() -> None:
    done = door("generate", "--size", "3", "--count", "3")
    assert done.returncode == 2 and "no further hard board" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["nowhere.jsonl", "boards.md"])
def test_a_file_that_is_not_there_or_not_read_is_blamed_on_the_argument(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "boards.md").touch()
    done = door("solve", str(tmp_path / name))
    assert done.returncode == 2 and done.stderr.startswith("error: the file to solve must ")
    assert name in done.stderr and "task.data" not in done.stderr


def test_a_recipe_out_of_bounds_names_the_option() -> None:
    done = door("generate", "--size", "2")
    assert (done.returncode, done.stderr) == (2, "error: --size must lie in 3 to 16, got 2\n")
