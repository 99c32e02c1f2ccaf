"""Every file of examples/ runs as its first lines say, here with the echo backend."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.configs import ROOT

ASKING = {"ask_in_notebook.py", "ask_batch.py", "ask_stream.py", "ask_chat.py"}
SCRIPTS = sorted((ROOT / "examples").glob("*.sh"))


def run(*command: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=400, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_completes_and_its_rows_can_be_read(script: Path, tmp_path: Path) -> None:
    said = run(str(script), "backend=echo", f"run.root={tmp_path}")
    assert said.count("complete: ") == len(list(tmp_path.rglob("run.json"))) > 0
    told = run(sys.executable, str(ROOT / "examples/read_rows.py"), str(tmp_path))
    assert "pass1" in told and "pass2" in told and "least sure of: '" in told


def test_the_second_start_of_own_questions_asks_nothing(tmp_path: Path) -> None:
    run(str(ROOT / "examples/own_questions.sh"), "backend=echo", f"run.root={tmp_path}")
    (first, second) = tmp_path.rglob("run.json")
    assert first.read_text().count('"attempt": ') == second.read_text().count('"attempt": ') == 1


def test_every_example_is_run_by_a_test() -> None:
    known = {"two_pass.sh", "own_questions.sh", "read_rows.py", "train_tiny.py", *ASKING}
    known |= {"demo_questions.py"}  # tests/tasks/test_demo.py
    assert {path.name for path in (ROOT / "examples").iterdir() if path.is_file()} == known


def test_a_tiny_model_is_trained_into_a_folder_that_loads(tmp_path: Path) -> None:
    script = str(ROOT / "examples/train_tiny.py")
    run(sys.executable, script, "mini_llm", str(tmp_path / "m"), "--steps", "1")
    line = ("task=qa", "model=local", f"model.path={tmp_path / 'm'}", "quantization=fp32")
    caps = ("run.limit=1", "sampling.max_new_tokens=3", f"run.cache_dir={tmp_path / 'cache'}")
    said = run(sys.executable, str(ROOT / "launch/run.py"), *line, *caps, f"run.root={tmp_path}")
    assert "complete: 1 of 1 rows" in said


@pytest.mark.parametrize("script", sorted(ASKING))
def test_a_script_that_asks_a_model_prints_answers(script: str) -> None:
    said = run(sys.executable, str(ROOT / "examples" / script), "smollm2", "backend=echo")
    assert any(word in said for word in ("Name", "colours", "colour.", "sea.", "verb?", "about"))
