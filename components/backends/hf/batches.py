"""Puts waiting requests into batches and runs those in a thread, one after the other."""

import asyncio
import gc
import itertools
import logging
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from components.decoding.sequence import Decoded
from pipeline.protocols import Generation

_LOG = logging.getLogger(__name__)
_LULL = 0.004  # seconds without a new request after which a batch starts that is not full
_NO_MEMORY = ("DefaultCPUAllocator", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")

Run = Callable[[Sequence[Decoded], Callable[[Decoded], None]], None]


@dataclass(slots=True)
class _Waiting:
    order: tuple[int, int]
    row: Decoded
    future: asyncio.Future[Generation]


class Batches:
    """A queue of requests in front of a decoder, which alone runs off the event loop."""

    def __init__(self, run: Run, size: int) -> None:
        """`run` decodes up to `size` rows in a thread and reports each as soon as it is over."""
        self.size = size
        self._run = run
        self._serial = itertools.count()
        self._waiting: list[_Waiting] = []
        self._running: list[_Waiting] = []
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="decoder")
        self._serving = asyncio.create_task(self._serve())
        self._serving.add_done_callback(self._close)

    @property
    def capacity(self) -> int:
        """Traces that keep batches full."""
        return 2 * self.size

    def describe(self) -> dict[str, Any]:
        """The decoder and its batch size, for the attempt record."""
        return {"decoder": "generate", "batch_size": self.size}

    def release(self, trace: int) -> None:
        """Nothing is kept between requests."""

    async def submit(self, row: Decoded) -> Generation:
        """Wait for the row's turn and its end. Cancelling drops the row, also out of a batch."""
        if self._serving.done():
            raise RuntimeError("the backend is closed")
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting((row.request.trace_id, next(self._serial)), row, future))
        self._arrived.set()
        try:
            return await future
        finally:
            row.dropped = row.reason is None

    async def close(self) -> None:
        """Drop all rows and wait for the thread, which ends within one step."""
        for waiting in (*self._waiting, *self._running):
            waiting.row.dropped = True
        self._serving.cancel()
        await asyncio.wait([self._serving])
        await asyncio.to_thread(self._thread.shutdown)

    def _close(self, serving: asyncio.Task[None]) -> None:
        """Fail whoever still waits, with what ended the service."""
        error = None if serving.cancelled() else serving.exception()
        for waiting in (*self._waiting, *self._running):
            if not waiting.future.done():
                waiting.future.set_exception(error or RuntimeError("the backend was closed"))

    async def _serve(self) -> None:
        while True:
            await self._arrived.wait()
            await self._lull()
            self._running = self._pick()
            if self._running:
                await self._decode(self._running)
            self._running = []
            if not self._waiting:
                self._arrived.clear()

    async def _lull(self) -> None:
        """Wait while requests keep coming and there is room for them."""
        known = 0
        while known < len(self._waiting) < self.size:
            known = len(self._waiting)
            await asyncio.sleep(_LULL)

    def _pick(self) -> list[_Waiting]:
        """The next batch: the earliest trace first, then its likes in length, then all others."""
        alive = sorted((w for w in self._waiting if not w.row.over), key=lambda w: w.order)
        cap = alive[0].row.left if alive else 0
        alive.sort(key=lambda w: w.row.left != cap)
        self._waiting = alive[self.size :]
        return alive[: self.size]

    async def _decode(self, batch: Sequence[_Waiting]) -> None:
        loop = asyncio.get_running_loop()
        futures = {id(waiting.row): waiting.future for waiting in batch}

        def deliver(row: Decoded) -> None:
            future = futures[id(row)]
            if not future.done():
                future.set_result(row.generation())

        def finish(row: Decoded) -> None:
            loop.call_soon_threadsafe(deliver, row)

        call = loop.run_in_executor(self._thread, self._run, [w.row for w in batch], finish)
        await asyncio.wait([call])
        error = call.exception()
        if error is not None:
            self._recover(batch, error)

    def _recover(self, batch: Sequence[_Waiting], error: BaseException) -> None:
        """After out of memory go on with half the rows, from where they are; else fail the rows."""
        left = [waiting for waiting in batch if not waiting.row.over]
        if not out_of_memory(error):
            return _fail(left, error)
        traceback.clear_frames(error.__traceback__)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if len(batch) == 1:
            prompt = len(batch[0].row.ids)
            return _fail(
                left,
                MemoryError(
                    f"out of memory with a single row of {prompt} tokens: backend.batch_size is "
                    "at 1, so lower model.max_length or the caps in sampling"
                ),
            )
        self.size = len(batch) // 2
        self._waiting += left
        _LOG.warning(
            "out of memory with %d rows: backend.batch_size goes on as %d", len(batch), self.size
        )


def _fail(batch: Sequence[_Waiting], error: BaseException) -> None:
    for waiting in batch:
        if not waiting.future.done():
            waiting.future.set_exception(error)


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: torch has a class for some cases and a sentence for the others."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _NO_MEMORY)
