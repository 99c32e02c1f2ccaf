"""Runs the traces of one or more points over one backend.

Opens as many as the backend wants, writes rows as they end.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pipeline.point import Point
from pipeline.protocols import Backend, Example
from pipeline.rows import Row, StoreError
from pipeline.session import Session

Work = tuple[Session, Example, int]
OnRow = Callable[[Session, Row | None], None]


async def execute(
    points: Sequence[Point],
    backend: Backend,
    stop: asyncio.Event | None = None,
    on_row: OnRow = lambda session, row: None,
) -> list[Session]:
    """Run every point to its end; points share `backend`.

    `backend` is entered only if anything is left to do. When `stop` is set no new trace begins and
    those under way are dropped; what they finished is in the journal. `on_row` hears of every row,
    and of every failed trace with None. Returns the closed sessions.
    """
    sessions: list[Session] = []
    about: dict[str, Any] = {}
    try:
        for point in points:
            sessions.append(Session(point))
        if any(session.todo for session in sessions):
            async with backend:
                try:
                    await _Loop(sessions, backend, stop or asyncio.Event(), on_row).run()
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
        self.work: Iterator[Work] = ((s, e, i) for s in sessions for e, i in s.todo)
        self.open: dict[asyncio.Task[Row], Work] = {}
        self.number = 0

    async def run(self) -> None:
        stopped = asyncio.create_task(self.stop.wait())
        try:
            while self._fill():
                first = asyncio.FIRST_COMPLETED
                done, _ = await asyncio.wait({*self.open, stopped}, return_when=first)
                for task in done - {stopped}:
                    self._settle(task)  # type: ignore[arg-type]
                if self.stop.is_set():
                    break
        finally:
            stopped.cancel()
            await self._drop()

    def _fill(self) -> bool:
        """Open traces up to the backend's capacity; False when none is open and none is left."""
        while len(self.open) < self.backend.capacity and not self.stop.is_set():
            item = next((w for w in self.work if not w[0].broken), None)
            if item is None:
                break
            session, example, sample = item
            run = session.run_trace(example, sample, self.number, self.backend)
            self.open[asyncio.create_task(run)] = item
            self.number += 1
        return bool(self.open)

    def _settle(self, task: asyncio.Task[Row]) -> None:
        session, example, sample = self.open.pop(task)
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, StoreError):
            raise error
        if error is None:
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
