"""Ctrl-C ends every command with one sentence and status 130, from its first moment on."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from launch.rethink import doors
from tests.fakes.configs import ROOT

# Lines that work for longer than the test waits, or as long as their libraries load.
LINES = {
    "run": ["task=crossword", "backend=echo", "backend.seconds_per_token=1"],
    "chat": ["backend=echo"],
    "backfill": ["task=crossword", "backend=echo", "backfill.input=rows.jsonl"],
    "export_model": ["to=safetensors", "model=smollm2", "out=exported"],
    "quantize_check": ["model=smollm2", "quantization=fp32"],
    "boards": ["generate", "--size", "6"],
    "export_rows": ["rows.jsonl", "out=rows.csv", "to=csv"],
    "grade": ["task=math", "pairs=rows.jsonl"],
    "import_toml": ["config.toml"],
    "report": [".", "--serve", "--port", "0"],
    "score_text": ["rows.jsonl"],
    "status": ["."],
    "summarize": ["rows.jsonl"],
    "tasks": [],
}
MOMENTS = (0.0, 0.5, 2.0)  # seconds after the door was guarded, the first thing that it does
# Runs a door as Python runs a script, and says when it is guarded.
DOOR = """
import os, runpy, sys
from launch.config import interrupts
guard, door, tell = interrupts.guard, sys.argv.pop(1), int(sys.argv.pop(1))
def guarded():
    guard()
    os.write(tell, b"!")
interrupts.guard = guarded
sys.argv[0] = door
runpy.run_path(door, run_name="__main__")
"""


def guarded(door: str, folder: Path) -> subprocess.Popen[str]:
    """A door that has just been guarded, in a process of its own."""
    told, tell = os.pipe()
    line = [sys.executable, "-c", DOOR, str(ROOT / "launch" / f"{door}.py"), str(tell)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    words = [*line, *LINES[door]]
    process = subprocess.Popen(words, cwd=folder, text=True, pass_fds=[tell], **pipes)
    os.close(tell)
    assert os.read(told, 1) == b"!", process.communicate()[1]
    os.close(told)
    return process


def test_every_door_has_a_line_here() -> None:
    assert sorted(LINES) == sorted(doors())


@pytest.mark.parametrize("door", sorted(LINES))
def test_ctrl_c_at_any_moment_ends_a_door_with_one_sentence(door: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.jsonl")  # who reads it waits
    for moment in MOMENTS:
        with guarded(door, tmp_path) as process:
            with suppress(subprocess.TimeoutExpired):
                process.wait(moment)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        said = (moment, process.returncode, errors)
        assert "Traceback" not in errors, said
        if process.returncode == 130:
            told = [word for word in errors.split() if word in ("interrupted", "ending:")]
            assert len(told) == 1, said  # a run that is under way says that it is ending
        else:  # it had come to its own end, which no door has at once
            assert moment and process.returncode in (0, 2), said
