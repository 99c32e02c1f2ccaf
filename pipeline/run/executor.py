"""Runs the traces of one or more points over one backend, and writes rows as they end."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from pipeline.protocols import Backend, BackendLostError, Example
from pipeline.run.point import Point
from pipeline.run.session import Session, open_session
from pipeline.store.files import Row, StoreError

Work = tuple[Session, Example, int]
OnRow = Callable[[Session, Row | None], None]
OnStart = Callable[[Sequence[Session]], None]
PAID_GRACE_SECONDS = 120.0
_LOG = logging.getLogger(__name__)


async def execute(
    points: Sequence[Point],
    backend: Backend,
    stop: asyncio.Event | None = None,
    on_row: OnRow = lambda session, row: None,
    drop: asyncio.Event | None = None,
    on_start: OnStart = lambda sessions: None,
) -> list[Session]:
    """Run every point to its end; points share `backend`.

    `backend` is entered only if anything is left to do. Once `stop` is set no further request is
    sent; those under way have `grace_seconds`, or until `drop` is set. What was finished of traces
    is in the journal. `on_row` hears of every row, and of a failed trace with None. Ranks above 0
    are dismissed at the end, unless an error ends them.
    """
    stop = stop or asyncio.Event()
    sessions: list[Session] = []
    about: dict[str, Any] = {}
    try:
        for point in points:
            session = await open_session(point, stop)
            sessions += [session] if session else []
        if any(session.todo for session in sessions):
            async with backend:
                grace = grace_seconds(points, backend)
                loop = _Loop(sessions, backend, on_row, stop, drop or asyncio.Event(), grace)
                on_start(sessions)
                try:
                    await loop.run()
                finally:
                    about = backend.describe()
        backend.dismiss()
    finally:
        # In a thread, which goes on to the last session even if this is cancelled.
        await asyncio.shield(asyncio.to_thread(_close, sessions, about))
    return sessions


def grace_seconds(points: Sequence[Point], backend: Backend) -> float:
    """How long a stopped run waits for the answers under way (`run.grace_seconds`)."""
    default = PAID_GRACE_SECONDS if backend.capabilities.paid else 0.0
    chosen = [point.spec.run.grace_seconds for point in points]
    return max((default if given is None else given for given in chosen), default=0.0)


def _close(sessions: Sequence[Session], about: dict[str, Any]) -> None:
    """Close all sessions, whatever becomes of one of them; then raise its error."""
    errors = []
    for session in sessions:
        try:
            session.close(about)
        except StoreError as error:
            errors.append(error)
    if errors:
        raise errors[0]


class _Loop:
    """Keeps `backend.capacity` traces open until the work is done or the run is stopped."""

    def __init__(
        self,
        sessions: Sequence[Session],
        backend: Backend,
        on_row: OnRow,
        stop: asyncio.Event,
        drop: asyncio.Event,
        grace: float,
    ) -> None:
        self.sessions, self.backend, self.on_row = sessions, backend, on_row
        self.stop, self.drop, self.grace = stop, drop, grace
        self.open: dict[asyncio.Task[Any], Work] = {}
        self.ended: asyncio.Queue[asyncio.Task[Any]] = asyncio.Queue()
        self.number = 0

    async def run(self) -> None:
        signals = [asyncio.create_task(event.wait()) for event in (self.stop, self.drop)]
        for signal in signals:
            signal.add_done_callback(self.ended.put_nowait)
        try:
            while await self._fill() or await self._more():
                self._settle(await self.ended.get())  # asyncio.wait would look at every open trace
                if self.stop.is_set():
                    break
            if self.open and self.grace:
                await self._drain()
        finally:
            for signal in signals:
                signal.cancel()
            await self._cancel_open()

    async def _fill(self) -> bool:
        """Open traces up to the backend's capacity; False when none is open and none is left."""
        for session in self.sessions:
            while len(self.open) < self.backend.capacity and not self.stop.is_set():
                trace = await session.next_trace()
                if trace is None:
                    break
                run = session.run_trace(*trace, self.number, self.backend)
                self.open[task := asyncio.create_task(run)] = (session, *trace)
                task.add_done_callback(self.ended.put_nowait)
                self.number += 1
        return bool(self.open)

    async def _more(self) -> bool:
        """Wait for work that writers who may be dead have left; False when there is none."""
        poll_seconds = self.sessions[0].folder.claims.leases.lease_poll_seconds
        has_said_why = False
        while not self.stop.is_set() and any([await s.may_get_more() for s in self.sessions]):
            if not has_said_why:
                _LOG.warning(
                    "waiting for other writers, who have the rest and may be dead or asked for less"
                )
                has_said_why = True
            with suppress(TimeoutError):
                await asyncio.wait_for(self.stop.wait(), poll_seconds)
            if await self._fill():
                return True
        return False

    async def _drain(self) -> None:
        """Let requests under way end, which no others follow, for `grace` seconds at most."""
        self.backend.send_no_more()
        _LOG.warning(
            "no further request is sent; waiting up to %g seconds (run.grace_seconds) for the "
            "answers of %d traces under way; another signal drops them",
            self.grace,
            len(self.open),
        )
        with suppress(TimeoutError):
            async with asyncio.timeout(self.grace):
                while self.open and not self.drop.is_set():
                    self._settle(await self.ended.get())

    def _settle(self, task: asyncio.Task[Any]) -> None:
        """Take in what became of a trace; `task` may also be the one that waits for a signal."""
        if task not in self.open:
            return
        session, example, sample = self.open.pop(task)
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, StoreError | BackendLostError):
            raise error
        if error is None:
            if task.result() is not None:  # None: another writer has it, or the run is stopping
                self.on_row(session, task.result())
            return
        session.fail(example, sample, error)
        self.on_row(session, None)
        if all(one.is_broken for one in self.sessions):
            self.backend.send_no_more()
        if session.is_broken and not self.grace:  # with a grace they end by themselves
            for other, (owner, _, _) in self.open.items():
                if owner is session:
                    other.cancel()

    async def _cancel_open(self) -> None:
        """Drop what is under way, and wait until it has ended: then the journal may be closed."""
        for task in self.open:
            task.cancel()
        await asyncio.gather(*self.open, return_exceptions=True)
        self.open.clear()
