"""`experiment=inferencer` as it is typed: what a run of an adapter leaves, also after a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.configs import ROOT

pytest.importorskip("peft", reason="the extra `lora` is not installed")
COUNT = 12


@pytest.fixture
def line(tiny_adapter: Path, tmp_path: Path) -> list[str]:
    """A run of an adapter of the tiny Llama, a row after another."""
    data = tmp_path / "test.jsonl"
    rows = [{"id": f"q{i}", "question": f"Why {i}?", "answer": str(i)} for i in range(COUNT)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [
        *[sys.executable, "launch/run.py", "task=qa", "experiment=inferencer"],
        *[f"model.path={tiny_adapter}", f"task.data.path={data}", f"run.root={tmp_path}/runs"],
        *["backend.device=cpu", "backend.slots=1", "sampling.max_new_tokens=200"],
    ]


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text("utf-8").splitlines()]


def wait_for(what: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 200
    while not what():
        assert process.poll() is None, "it ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_run_of_an_adapter_that_is_killed_and_typed_again_has_each_row_once(
    line: list[str], tmp_path: Path
) -> None:
    def rows() -> list[Path]:
        return list((tmp_path / "runs").rglob("step*_test.jsonl"))

    process = subprocess.Popen(line, cwd=ROOT, stdout=subprocess.DEVNULL)
    wait_for(lambda: any(path.read_bytes().count(b"\n") >= 2 for path in rows()), process)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    (path,) = rows()
    lines = path.read_bytes().splitlines(keepends=True)
    whole = [text for text in lines if text.endswith(b"\n")]
    assert 2 <= len(whole) < COUNT, "it was killed in the middle"
    output = path.parent / "inferencer_output.jsonl"
    assert not output.exists()
    for _ in range(2):  # the second finds nothing to do, and writes no row again
        subprocess.run(line, cwd=ROOT, check=True, capture_output=True, timeout=200)
        kept = path.read_bytes()
        assert all(text in kept for text in whole), "finished rows stay as they were"
        ids = [f"q{i}" for i in range(COUNT)]
        assert sorted(row["example_id"] for row in records(path)) == sorted(ids)
        found = records(output)
        assert [row["question"] for row in found] == [f"Why {i}?" for i in range(COUNT)]
        assert [row["ground_truth"] for row in found] == [str(i) for i in range(COUNT)]
        assert list(found[0]) == ["question", "predicted_answer", "ground_truth", "metadata"]
        assert path.read_bytes() == kept
    record = json.loads((path.parent / "run.json").read_text())
    states = [attempt["status"] for attempt in record["attempts"]]
    assert states[:2] == ["killed", "complete"]


def test_the_schema_is_chosen_or_nothing_is_left(line: list[str], tmp_path: Path) -> None:
    def left(*more: str) -> list[Path]:
        few = [*line, "run.limit=2", "sampling.max_new_tokens=4", *more]
        done = subprocess.run(few, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == (2 if "run.inferencer_output=rows" in more else 0), done.stderr
        return list((tmp_path / "runs").rglob("inferencer_output.jsonl"))

    assert left("run.inferencer_output=rows") == []
    assert left("run.inferencer_output=null") == []
    (path,) = left("run.inferencer_output=inferencer")
    keys = ["system_prompt", "user_prompt", "assistant_response", "ground_truth"]
    assert [list(row) for row in records(path)] == [keys] * 2
