"""Ctrl-C ends every command with one sentence and status 130, from its first moment on."""

import os
import signal
import subprocess
import sys
import time
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
MOMENTS = (0.05, 0.5, 2.0)  # seconds after the interpreter's own start


def startup() -> float:
    """Seconds until the interpreter runs a first line, before which no command can be guarded."""
    begun = time.monotonic()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.monotonic() - begun


def started(line: list[str], folder: Path) -> subprocess.Popen[str]:
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(line, cwd=folder, text=True, **pipes)


def test_every_door_has_a_line_here() -> None:
    assert sorted(LINES) == sorted(doors())


@pytest.mark.parametrize("door", sorted(LINES))
def test_ctrl_c_at_any_moment_ends_a_door_with_one_sentence(door: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.jsonl")  # who reads it waits
    line = [sys.executable, str(ROOT / "launch" / f"{door}.py"), *LINES[door]]
    first = 2 * startup()
    stopped = 0
    for moment in MOMENTS:
        with started(line, tmp_path) as process:
            with suppress(subprocess.TimeoutExpired):
                process.wait(first + moment)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        said = (moment, process.returncode, errors)
        assert "Traceback" not in errors, said
        if process.returncode == 130:
            stopped += 1
            told = [word for word in errors.split() if word in ("interrupted", "ending:")]
            assert len(told) == 1, said  # a run that is under way says that it is ending
        else:  # it had come to its own end
            assert moment > 0.5 and process.returncode in (0, 2), said
    assert stopped >= 2, "the line ends too soon to be stopped"
