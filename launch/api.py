"""Rethink from Python: compose a run as the command line does, run it, or talk to its backend.

    from launch.api import compose, load, open_backend, run

    setup = compose("task=crossword", "backend=echo", "run.limit=4")
    outcome = run(setup)
    outcome.folder, outcome.status, outcome.table().passes

    async with open_backend(setup) as backend:
        generation = await backend.generate(request)

    with load("smollm2", "quantization=fp32", "sampling.max_new_tokens=20") as model:
        model.generate("Why is the sky blue?").text

All of it works in a script and in a notebook, whose event loop is left alone. What is wrong is
raised as `SpecError`, which names the config key, or as `StoreError`.
"""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hydra import compose as compose_config
from hydra import initialize_config_dir
from hydra.errors import HydraException
from omegaconf import open_dict
from omegaconf.errors import OmegaConfBaseException

from launch.config.command_line import (
    arguments,
    check_choices,
    check_names,
    error_sentence,
    refuse_flags,
)
from launch.config.compose import build_backend, build_point, register_schema
from launch.config.setup import RunSetup, setup_of
from launch.config.words import CONF, quoted
from launch.running.here import ENDING, PointsOutcome, follow_rank_0, run_ready
from launch.talk.session import Session, TalkSpec
from pipeline.protocols import Backend
from pipeline.run.point import Point
from pipeline.spec import SpecError
from pipeline.store.files import Row
from pipeline.store.row_index import read_rows

if TYPE_CHECKING:  # pandas, which a line that only composes spares
    from pipeline.analysis.table import Table

WAKING_SECONDS = 0.2
STATES = {0: "complete", 1: "failed", 130: "interrupted"}


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What became of a run. `status` is the exit status of the command line: 0 is complete."""

    point: Point
    status: int

    @property
    def state(self) -> str:
        """`complete`, `failed` (some traces did) or `interrupted`."""
        return STATES[self.status]

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.point.folder

    def rows(self) -> Iterator[Row]:
        """The rows as the file has them, one at a time."""
        return read_rows(self.point.rows_path)

    def table(self) -> "Table":
        """The numbers of all rows and passes, as summaries use them."""
        from pipeline.analysis.row_files import find
        from pipeline.analysis.table import load

        return load(find([self.folder]), workers=1)


def compose(*overrides: str, conf: Path = CONF, name: str = "config") -> RunSetup:
    """The run of a command line such as `"task=math", "sampling.temperature=0.3"`.

    `name` is the file in `conf` that says which groups there are.

    Raises:
        SpecError: what `python launch/run.py` would refuse, in the same words.
    """
    register_schema()
    refuse_flags(overrides)
    check_names(overrides)
    check_choices(overrides)
    try:
        with initialize_config_dir(str(conf.resolve()), version_base="1.3"):
            config = compose_config(name, list(overrides), return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise SpecError(error_sentence(error)) from error
    choices = dict(config.hydra.runtime.choices)
    with open_dict(config):
        del config["hydra"]
    return setup_of(config, overrides, choices)


def open_backend(setup: RunSetup) -> Backend:
    """The backend of a run, to be entered with `async with`, which loads it. Raises SpecError."""
    return build_backend(setup.spec)


def load(model: str, *overrides: str) -> Session:
    """A model to talk to, loaded when it is entered with `with` or `async with`.

    A prompt is asked as `task=prompts` asks it, so that greedy text is that of a run.

    Args:
        model: a name of conf/model, or a folder, file or hub id.
        overrides: as on the command line, such as `"quantization=fp32"`, `"mode=completion"`.

    Raises:
        SpecError: names the config key of what is wrong.
    """
    there = (CONF / "model" / f"{model}.yaml").exists()
    chosen = [f"model={model}"] if there else ["model=local", f"model.path={quoted(model)}"]
    setup = compose(*chosen, *arguments(overrides), name="chat")
    assert isinstance(setup.spec, TalkSpec)
    return Session(setup.spec, open_backend(setup), setup.spec.mode == "completion")


def point_of(setup: RunSetup, backend: Backend) -> Point:
    """The data, phases and fingerprint of a run, and its folder. Raises SpecError."""
    return build_point(setup.spec, backend, setup.overrides, setup.choices)


def run(setup: RunSetup, backend: Backend | None = None) -> RunOutcome:
    """Run to the end, or go on with what is there; the rows are written as they are finished.

    `backend` may be one that `open_backend` made for the same settings, not entered.

    Raises:
        SpecError: the spec breaks a rule, or another process writes the folder.
        StoreError: the folder cannot be read or written.
        BackendLostError: the backend cannot go on; finished rows stay.
    """
    backend = backend or open_backend(setup)
    point = point_of(setup, backend)
    if backend.follows:
        return RunOutcome(point, follow_rank_0(backend, setup.spec.run.shards))
    return RunOutcome(point, _run_to_end(point, backend, setup.config_text).status)


def _run_to_end(point: Point, backend: Backend, config: str) -> PointsOutcome:
    """Run in this thread, with its signals; beside an event loop of its caller in another one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run_ready([point], backend, [config], ENDING)
    outcome = PointsOutcome()
    with ThreadPoolExecutor(1) as thread:
        work = thread.submit(run_ready, [point], backend, [config], (), outcome)
        try:
            # The system may hand a signal to the other thread: Python sees it here once this wakes.
            while not wait([work], WAKING_SECONDS).done:
                continue
        except KeyboardInterrupt:  # a notebook's stop button
            outcome.interrupt()
        return work.result()
