"""Runs ready points in this process, with its signals: what is whole is written, then it ends."""

import asyncio
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from launch.config.command_line import INTERRUPTED
from launch.running.files import log_into, log_name, write_config_once
from launch.running.screen import Progress, print_summary
from launch.running.tracking import tracked
from pipeline.protocols import Backend
from pipeline.run.executor import OnRow, execute
from pipeline.run.point import Point, record_of
from pipeline.run.session import Session
from pipeline.store.files import Row
from pipeline.store.run_record import RunRecord

ENDING = (signal.SIGINT, signal.SIGTERM)
PATIENCE = 10.0  # seconds from a signal to giving up on whatever does not stop


@dataclass(slots=True)
class Ran:
    """What became of some points."""

    sessions: list[Session] = field(default_factory=list)
    signals: set[int] = field(default_factory=set)  # those that came

    @property
    def status(self) -> int:
        """0, 1 (a trace failed) or 130 (interrupted)."""
        states = {session.status for session in self.sessions}
        if "failed" in states:
            return 1
        stopped = self.signals and not states <= {"complete", "shared"}
        return INTERRUPTED if stopped or not states or "interrupted" in states else 0


def run_ready(
    points: Sequence[Point],
    backend: Backend,
    configs: Sequence[str],
    signals: Sequence[int] = ENDING,
) -> Ran:
    """Run points that share a backend; `configs` are their composed configs as text.

    On one of `signals` no new trace begins and those under way are dropped.
    """
    for point in points:
        RunRecord(point.folder, record_of(point))  # refuses before anything is written
    for point, config in zip(points, configs, strict=True):
        write_config_once(point, config)
    files = [point.folder / log_name(point) for point in points]
    with log_into(files), tracked(points) as end_tracking:
        ran = run_until_signal(points, backend, signals=signals)
        end_tracking(ran.sessions)
    print_summary(ran.sessions)
    return ran


def run_until_signal(
    points: Sequence[Point],
    backend: Backend,
    on_row: OnRow = lambda session, row: None,
    signals: Sequence[int] = ENDING,
) -> Ran:
    """Execute with a progress bar; one of `signals` ends it once what is whole is written."""
    before = {number: signal.getsignal(number) for number in signals}
    ran = Ran()
    try:
        asyncio.run(_run(points, backend, on_row, before, ran))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return ran


async def _run(
    points: Sequence[Point], backend: Backend, on_row: OnRow, signals: Iterable[int], ran: Ran
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    with Progress(points) as progress:

        def heard(session: Session, row: Row | None) -> None:
            progress.on_row(session, row)
            on_row(session, row)

        work = asyncio.create_task(execute(points, backend, stop, heard))

        def end(number: int) -> None:
            ran.signals.add(number)
            if not stop.is_set():
                stop.set()
                loop.call_later(PATIENCE, work.cancel)  # a model that is still loading

        for number in signals:
            loop.add_signal_handler(number, end, number)
        try:
            ran.sessions += await work
        except asyncio.CancelledError:
            if not ran.signals:
                raise
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
