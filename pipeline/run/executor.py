"""Runs the traces of one or more points over one backend, and writes rows as they end."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pipeline.protocols import Backend, BackendLostError, Example
from pipeline.run.point import Point
from pipeline.run.session import Session, open_session
from pipeline.store.files import Row, StoreError

Work = tuple[Session, Example, int]
OnRow = Callable[[Session, Row | None], None]


async def execute(
    points: Sequence[Point],
    backend: Backend,
    stop: asyncio.Event | None = None,
    on_row: OnRow = lambda session, row: None,
) -> list[Session]:
    """Run every point to its end; points share `backend`.

    `backend` is entered only if anything is left to do. `stop` drops traces under way; what they
    finished is in the journal. `on_row` hears of every row, and of a failed trace with None.
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
                try:
                    await _Loop(sessions, backend, stop, on_row).run()
                finally:
                    about = backend.describe()
    finally:
        for session in sessions:
            session.close(about)
    return sessions


class _Loop:
    """Keeps `backend.capacity` traces open until the work or the patience ends."""

    def __init__(
        self, sessions: Sequence[Session], backend: Backend, stop: asyncio.Event, on_row: OnRow
    ) -> None:
        self.backend, self.stop, self.on_row = backend, stop, on_row
        self.sessions = sessions
        self.work = self._work()
        self.open: dict[asyncio.Task[Row | None], Work] = {}
        self.ended: asyncio.Queue[asyncio.Task[Any]] = asyncio.Queue()
        self.number = 0

    def _work(self) -> Iterator[Work]:
        return ((s, e, i) for s in self.sessions for e, i in s.work())

    async def run(self) -> None:
        stopped = asyncio.create_task(self.stop.wait())
        stopped.add_done_callback(self.ended.put_nowait)
        try:
            while self._fill() or await self._more(stopped):
                task = await self.ended.get()  # asyncio.wait would look at every open trace
                if task is not stopped:
                    self._settle(task)
                if self.stop.is_set():
                    break
        finally:
            stopped.cancel()
            await self._drop()

    def _fill(self) -> bool:
        """Open traces up to the backend's capacity; False when none is open and none is left."""
        while len(self.open) < self.backend.capacity and not self.stop.is_set():
            item = next((w for w in self.work if not w[0].over), None)
            if item is None:
                break
            session, example, sample = item
            run = session.run_trace(example, sample, self.number, self.backend)
            self.open[task := asyncio.create_task(run)] = item
            task.add_done_callback(self.ended.put_nowait)
            self.number += 1
        return bool(self.open)

    async def _more(self, stopped: asyncio.Task[Any]) -> bool:
        """Wait for work that writers who may be dead have left; False when there is none."""
        while not self.stop.is_set() and any([s.in_doubt() for s in self.sessions]):
            await asyncio.wait({stopped}, timeout=self.sessions[0].patience)
            self.work = self._work()
            if self._fill():
                return True
        return False

    def _settle(self, task: asyncio.Task[Row | None]) -> None:
        session, example, sample = self.open.pop(task)
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, StoreError | BackendLostError):
            raise error
        if error is None:
            if task.result() is not None:  # None: another writer has it, or run.budget is spent
                self.on_row(session, task.result())
            return
        session.fail(example, sample, error)
        self.on_row(session, None)
        if session.broken:
            for other, (owner, _, _) in self.open.items():
                if owner is session:
                    other.cancel()

    async def _drop(self) -> None:
        for task in self.open:
            task.cancel()
        await asyncio.gather(*self.open, return_exceptions=True)
        self.open.clear()
