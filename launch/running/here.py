"""Runs ready points in this process, with its signals: finished rows are written, then it ends."""

import asyncio
import io
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from rich.console import Console

from launch.config.interrupts import INTERRUPTED
from launch.running.files import log_into, log_name, write_config_once
from launch.running.outputs import write_outputs
from launch.running.progress import Progress
from launch.running.screen import print_summary
from launch.running.spoken import Spoken, is_spoken
from launch.running.text_output import make_place
from launch.running.tracking import tracked
from pipeline.protocols import Backend
from pipeline.run.executor import OnRow, execute, grace_seconds
from pipeline.run.point import Point, record_of
from pipeline.run.session import Session
from pipeline.spec import require
from pipeline.store.files import Row
from pipeline.store.stored_record import refuse_other_spec

ENDING = (signal.SIGINT, signal.SIGTERM)
STOP_SECONDS = 10.0  # from the end of the grace to giving up on whatever does not stop


@dataclass(slots=True)
class PointsOutcome:
    """What became of some points."""

    sessions: list[Session] = field(default_factory=list)
    signals: set[int] = field(default_factory=set)  # those that came
    interrupt: Callable[[], object] = lambda: None  # from any thread: as SIGINT would

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
    outcome: PointsOutcome
    | None = None,  # what is returned; another thread can interrupt the run by it
) -> PointsOutcome:
    """Run points that share a backend; `configs` are their composed configs as text.

    On one of `signals` no further request is sent, and answers under way that are paid for are
    waited for (`run.grace_seconds`); a second signal drops them.
    """
    for point in points:
        refuse_other_spec(point.folder, record_of(point))  # refuses before anything is written
    for point, config in zip(points, configs, strict=True):
        make_place(point)
        write_config_once(point, config)
    files = [point.folder / log_name(point) for point in points]
    spoken = Spoken(points[0], backend) if is_spoken(points) else None
    with log_into(files), tracked(points) as end_tracking:
        outcome = run_until_signal(points, backend, signals=signals, outcome=outcome, spoken=spoken)
        end_tracking(outcome.sessions)
    for session in outcome.sessions:
        if session.status != "shared":  # the shard that ends the run writes it
            write_outputs(session.point)
    if spoken:
        spoken.finish()
    print_summary(outcome.sessions, spoken is not None)
    if outcome.signals and not outcome.sessions:
        print("interrupted before a row was begun: the same command goes on")
    return outcome


def follow_rank_0(backend: Backend, shards: int, signals: Sequence[int] = ENDING) -> int:
    """What a rank above 0 does until rank 0 is done, whose launcher sends the signals to it too.

    Returns the exit status.

    Raises:
        SpecError: the run is to be shared among shards as well.
        Exception: what failed here; the run ends on every rank.
    """
    rule = "be 1 on several ranks of one model; start one command per shard"
    require(shards == 1, "run.shards", rule, shards)
    for number in signals:
        signal.signal(number, signal.SIG_IGN)
    asyncio.run(backend.follow())
    return 0


def run_until_signal(
    points: Sequence[Point],
    backend: Backend,
    on_row: OnRow = lambda session, row: None,
    signals: Sequence[int] = ENDING,
    outcome: PointsOutcome | None = None,
    spoken: Spoken | None = None,
) -> PointsOutcome:
    """Execute with a progress bar; one of `signals` ends it once finished rows are written.

    With `spoken` the answer is shown in place of the bar.
    """
    before = {number: signal.getsignal(number) for number in signals}
    outcome = outcome or PointsOutcome()
    try:
        asyncio.run(_run(points, backend, on_row, before, outcome, spoken))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return outcome


async def _run(
    points: Sequence[Point],
    backend: Backend,
    on_row: OnRow,
    signals: Iterable[int],
    outcome: PointsOutcome,
    spoken: Spoken | None,
) -> None:
    stop, drop = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    with Progress(points, backend, Console(file=io.StringIO()) if spoken else None) as progress:

        def heard(session: Session, row: Row | None) -> None:
            progress.on_row(session, row)
            on_row(session, row)

        def started(sessions: Sequence[Session]) -> None:
            outcome.sessions[:] = sessions  # known also where the work is given up on
            progress.on_start(sessions)
            if spoken:
                spoken.on_start(sessions)

        work = asyncio.create_task(execute(points, backend, stop, heard, drop, started))

        def end(number: int) -> None:
            outcome.signals.add(number)
            if not stop.is_set():
                print("ending: finished rows are kept, the same command goes on", file=sys.stderr)
            grace = 0.0 if stop.is_set() else grace_seconds(points, backend)
            if not grace:
                drop.set()
            stop.set()
            loop.call_later(grace + STOP_SECONDS, work.cancel)  # a model that is still loading

        outcome.interrupt = lambda: loop.call_soon_threadsafe(end, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, end, number)
        try:
            outcome.sessions[:] = await work
        except asyncio.CancelledError:
            if not outcome.signals:
                raise
        finally:
            outcome.interrupt = lambda: None
            for number in signals:
                loop.remove_signal_handler(number)
