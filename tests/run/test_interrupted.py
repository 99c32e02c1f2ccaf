"""What a run that a signal ended says of itself is what it did."""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from components.backends.echo import Echo
from launch import api
from launch.running import here
from pipeline.protocols import Generation, Request
from tests.fakes.configs import ROOT

LINE = ("task=crossword", "backend=echo", "run.limit=3")


class Stubborn(Echo):
    """Its first answer comes; all others take no notice of being cancelled for a second."""

    async def generate(self, request: Request) -> Generation:
        """As Echo, or after a second."""
        if request.trace_id == 0:
            return await super().generate(request)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                continue
        raise asyncio.CancelledError


def test_answers_that_do_not_stop_are_given_up_on_and_the_row_that_came_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(here, "STOP_SECONDS", 0.2)
    setup = api.compose(*LINE, f"run.root={tmp_path}")
    backend: Any = Stubborn(setup.spec.model)
    point = api.point_of(setup, backend)
    outcome = here.PointsOutcome()
    stop = threading.Timer(0.6, lambda: outcome.interrupt())
    stop.start()
    here.run_ready([point], backend, [setup.config_text], (), outcome)
    assert outcome.status == 130 and len(outcome.sessions) == 1
    assert len(point.rows_path.read_text().splitlines()) == 1
    said = capsys.readouterr().out
    assert "1 of 3 rows" in said and "before a row" not in said and "loading" not in said


def test_a_run_that_waited_for_another_writer_does_not_say_that_it_loaded(tmp_path: Path) -> None:
    line = [sys.executable, "launch/run.py", *LINE, f"run.root={tmp_path}"]
    slow = [*line, "backend.seconds_per_token=0.5"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    first = subprocess.Popen(slow, cwd=ROOT, **pipes)
    try:
        while not list(tmp_path.rglob("run.json")):
            assert first.poll() is None
            time.sleep(0.05)
        with subprocess.Popen([*slow, "run.wait=true"], cwd=ROOT, **pipes) as second:
            time.sleep(6)
            assert second.poll() is None
            second.send_signal(signal.SIGINT)
            out, errors = second.communicate(timeout=60)
        assert second.returncode == 130 and "Traceback" not in errors
        assert "interrupted before a row was begun: the same command goes on" in out
    finally:
        first.kill()
        first.communicate()
