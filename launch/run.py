"""The main door: `python launch/run.py task=crossword backend=hf sampling.temperature=0.3`."""

import os

os.environ.setdefault(
    "OMP_WAIT_POLICY", "passive"
)  # before torch: spinning waits stall a busy machine

import asyncio
import signal
import sys
from collections.abc import Sequence
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from launch.compose import build_backend, build_point, register_schema, to_spec
from launch.run_files import log_into, write_config_once
from launch.screen import Progress, print_summary, show_dry_run
from launch.tracking import tracked
from pipeline.executor import OnRow, execute
from pipeline.point import Point
from pipeline.protocols import Backend, BackendLostError
from pipeline.rows import Row, StoreError
from pipeline.session import Session
from pipeline.spec import SpecError

INTERRUPTED = 130


@hydra.main(version_base="1.3", config_path="../conf", config_name="config")
def main(config: DictConfig) -> None:
    """Run one point; Hydra calls it once per point of a sweep."""
    try:
        status = run_config(config)
    except (SpecError, StoreError, BackendLostError) as error:
        print(f"error: {error}", file=sys.stderr)
        status = 2
    if status:
        sys.exit(status)


def run_config(config: DictConfig) -> int:
    """Run what a composed config says. Returns the exit status."""
    spec = to_spec(config)
    hydra_config = HydraConfig.get()
    choices: dict[str, Any] = dict(hydra_config.runtime.choices)
    backend = build_backend(spec)
    point = build_point(spec, backend, hydra_config.overrides.task, choices)
    if spec.run.dry:
        show_dry_run(point, backend)
        return 0
    return run_points([point], backend, {point.folder: config})


def run_points(points: list[Point], backend: Backend, configs: dict[Any, DictConfig]) -> int:
    """Run points that share a backend. Returns 0, 1 (a trace failed) or 130 (interrupted)."""
    for point in points:
        write_config_once(point, configs[point.folder])
    with log_into([point.folder for point in points]), tracked(points) as end_tracking:
        sessions = run_until_signal(points, backend)
        end_tracking(sessions)
    print_summary(sessions)
    states = {session.status for session in sessions}
    return 1 if "failed" in states else INTERRUPTED if "interrupted" in states else 0


def run_until_signal(
    points: Sequence[Point], backend: Backend, on_row: OnRow = lambda session, row: None
) -> list[Session]:
    """Execute with a progress bar; SIGINT and SIGTERM end it once what is whole is written."""
    return asyncio.run(_execute(points, backend, on_row))


async def _execute(points: Sequence[Point], backend: Backend, on_row: OnRow) -> list[Session]:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    with Progress(points) as progress:

        def heard(session: Session, row: Row | None) -> None:
            progress.on_row(session, row)
            on_row(session, row)

        return await execute(points, backend, stop, heard)


register_schema()

if __name__ == "__main__":
    main()
