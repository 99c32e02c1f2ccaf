"""Calls that come one by one and are worth making together."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class Together(Generic[Asked, Answer]):
    """Hands all that waits to one call, and the next ones to the call after it."""

    def __init__(
        self, work: Callable[[Sequence[Asked]], Awaitable[Sequence[Answer]]], most: int
    ) -> None:
        """`work` answers up to `most` at once, in order."""
        self._work, self._most = work, most
        self._waiting: list[tuple[Asked, asyncio.Future[Answer]]] = []
        self._running: asyncio.Task[None] | None = None

    async def ask(self, asked: Asked) -> Answer:
        """The answer, or what the call that it was part of raised."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, future))
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await future

    async def close(self) -> None:
        """Drop what waits and what runs."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        for _, future in self._waiting:
            future.cancel()

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                await self._answer(batch)
        finally:
            self._running = None

    async def _answer(self, batch: Sequence[tuple[Asked, asyncio.Future[Answer]]]) -> None:
        call = asyncio.ensure_future(self._work([asked for asked, _ in batch]))
        try:
            await asyncio.wait([call])
        finally:
            if not call.done():
                call.cancel()
        open_calls = [n for n, (_, future) in enumerate(batch) if not future.done()]
        error = call.exception()
        for number in open_calls:
            future = batch[number][1]
            if error is None:
                future.set_result(call.result()[number])
            else:
                future.set_exception(error)
