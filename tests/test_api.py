"""Rethink from Python does what the command line does, also beside a running event loop."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from launch import api
from pipeline.protocols import Generation, Group, Message, Prompt, Request
from pipeline.spec import SpecError
from tests.fakes.configs import ROOT
from tests.run.test_executor import stable

LINE = ("task=crossword", "backend=echo", "cue=wait", "run.limit=3", "sampling.temperature=0.3")


def test_a_run_from_python_is_the_run_of_the_command_line(tmp_path: Path) -> None:
    outcome = api.run(api.compose(*LINE, f"run.root={tmp_path / 'python'}"))
    assert (outcome.status, outcome.state) == (0, "complete")
    words = [*LINE, f"run.root={tmp_path / 'line'}"]
    subprocess.run([sys.executable, "launch/run.py", *words], cwd=ROOT, check=True)
    (folder,) = (tmp_path / "line").glob("default/*/step-0")
    assert folder.relative_to(tmp_path / "line") == outcome.folder.relative_to(tmp_path / "python")
    for name in ("config.yaml", "overrides.yaml", outcome.point.rows_path.name):
        python, line = (str((place / name).read_text()) for place in (outcome.folder, folder))
        python, line = python.replace("/python", "/line"), line
        assert name.endswith("jsonl") or python == line
    other = api.run(api.compose(*words))  # goes on in the folder of the command line: nothing to do
    assert [stable(row) for row in outcome.rows()] == [stable(row) for row in other.rows()]
    assert len(outcome.table().passes) == 6


def test_a_notebook_with_a_running_loop_can_run_and_can_ask_a_backend(tmp_path: Path) -> None:
    setup = api.compose(*LINE, f"run.root={tmp_path}")

    async def cell() -> tuple[api.RunOutcome, Generation]:
        outcome = api.run(setup)
        prompt = Prompt((Message("user", ("red green",)),))
        async with api.open_backend(setup) as backend:
            group = Group("mine", 0, 1)
            asked = Request(prompt, (), 50, setup.spec.sampling, 1, 0, group)
            return outcome, await backend.generate(asked)

    outcome, generation = asyncio.run(cell())
    assert outcome.status == 0 and len(list(outcome.rows())) == 3
    assert {"red", "green"} >= set(generation.text.replace("Wait,", "").split())


def test_a_notebook_that_is_stopped_keeps_what_is_finished(tmp_path: Path) -> None:
    slow = ("backend.seconds_per_token=0.01", "backend.capacity=1", "run.limit=12")
    setup = api.compose(*LINE, *slow, f"run.root={tmp_path}")

    def stop_after_a_row() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            time.sleep(0.01)
            with suppress(FileNotFoundError):  # a run removes files while they are listed
                if any(path.stat().st_size for path in tmp_path.rglob("step*.jsonl")):
                    break
        os.kill(os.getpid(), signal.SIGINT)

    async def cell() -> api.RunOutcome:
        threading.Thread(target=stop_after_a_row).start()
        return api.run(setup)

    loop = asyncio.new_event_loop()  # asyncio.run would take the signal for itself
    try:
        outcome = loop.run_until_complete(cell())
    finally:
        loop.close()
    assert outcome.state == "interrupted" and 0 < len(list(outcome.rows())) < 12


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("task=crosword",), "task must be one of .*crossword"),
        (("task=crossword", "sampling.temprature=1"), "did you mean temperature"),
        (("tusk=crossword",), "there is no tusk"),
        (("task=crossword", "sampling.top_p=2"), r"sampling\.top_p must lie in"),
    ],
)
def test_what_the_command_line_refuses_is_refused_in_the_same_words(
    words: tuple[str, ...], said: str
) -> None:
    with pytest.raises(SpecError, match=said):
        api.compose(*words)
