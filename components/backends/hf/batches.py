"""Puts waiting requests into static batches and runs those in a thread, one after the other."""

import asyncio
import gc
import logging
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from components.backends.hf.submission import (
    QueuedSequence,
    Submissions,
    fail,
    hand_back,
)
from components.decoding.sequence import TokenSequence
from components.models.out_of_memory import out_of_memory
from pipeline.protocols import BackendLostError, Generation

_LOG = logging.getLogger(__name__)
_LULL = 0.004  # seconds without a new request after which a batch starts that is not full

Result = TypeVar("Result")
Run = Callable[[Sequence[TokenSequence], Callable[[TokenSequence], None]], None]


class Batches:
    """A queue of requests in front of a decoder, which alone runs off the event loop."""

    def __init__(self, run: Run, size: int) -> None:
        """`run` decodes up to `size` sequences in a thread and reports each when it has ended."""
        self.size = size
        self._run = run
        self._waiting: list[QueuedSequence] = []
        self._running: list[QueuedSequence] = []
        self._halved: list[dict[str, int]] = []
        self._arrived = asyncio.Event()
        self._submissions = Submissions(self._put, self._arrived.set)
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="decoder")
        self._serving = asyncio.create_task(self._serve())
        self._serving.add_done_callback(self._close)

    @property
    def capacity(self) -> int:
        """Traces that keep batches full."""
        return 2 * self.size

    def describe(self) -> dict[str, Any]:
        """The decoder and its batch size, for the attempt record."""
        halved = {"out_of_memory": self._halved} if self._halved else {}
        return {"decoder": "generate", "batch_size": self.size, **halved}

    def release(self, trace_id: int) -> None:
        """Nothing is kept between requests."""

    async def submit(self, sequence: TokenSequence) -> Generation:
        """As `Submissions.submit`."""
        return await self._submissions.submit(sequence)

    async def call(self, work: Callable[[], Result]) -> Result:
        """Run `work` in the decoder's thread, between two batches.

        Raises:
            RuntimeError: the decoder is closed.
            Exception: what `work` raises.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def lose(self, why: str) -> None:
        """Fail all sequences: the decoder's thread may wait for ever. From any thread."""
        error = BackendLostError(f"{why}\nThe same command goes on from the finished rows.")
        self._loop.call_soon_threadsafe(lambda: fail((*self._waiting, *self._running), error))

    async def close(self) -> None:
        """Drop all sequences and wait for the thread, which ends within one step."""
        for queued in (*self._waiting, *self._running):
            queued.sequence.cancelled = True
        self._serving.cancel()
        await asyncio.wait([self._serving])
        await asyncio.to_thread(self._thread.shutdown)

    def _put(self, queued: QueuedSequence) -> None:
        self._waiting.append(queued)

    def _close(self, serving: asyncio.Task[None]) -> None:
        cause = None if serving.cancelled() else serving.exception()
        fail((*self._waiting, *self._running), self._submissions.close(cause))

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
        num_waiting = 0
        while num_waiting < len(self._waiting) < self.size:
            num_waiting = len(self._waiting)
            await asyncio.sleep(_LULL)

    def _pick(self) -> list[QueuedSequence]:
        """The next batch: the earliest trace first, then those with its cap, then all others."""
        alive = sorted(
            (each for each in self._waiting if not each.sequence.finished),
            key=lambda each: each.order,
        )
        cap = alive[0].sequence.num_remaining if alive else 0
        alive.sort(key=lambda each: each.sequence.num_remaining != cap)
        self._waiting = alive[self.size :]
        return alive[: self.size]

    async def _decode(self, batch: Sequence[QueuedSequence]) -> None:
        loop = asyncio.get_running_loop()
        queued_of = {id(queued.sequence): queued for queued in batch}

        def finish(sequence: TokenSequence) -> None:
            loop.call_soon_threadsafe(hand_back, [queued_of[id(sequence)]])

        sequences = [queued.sequence for queued in batch]
        call = loop.run_in_executor(self._thread, self._run, sequences, finish)
        await asyncio.wait([call])
        error = call.exception()
        if error is not None:
            self._recover(batch, error)

    def _recover(self, batch: Sequence[QueuedSequence], error: BaseException) -> None:
        """After out of memory go on with half the batch, from where it is; else fail the batch."""
        unfinished = [queued for queued in batch if not queued.sequence.finished]
        if not out_of_memory(error):
            return fail(unfinished, error)
        traceback.clear_frames(error.__traceback__)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if len(batch) == 1:
            prompt = len(batch[0].sequence.ids)
            return fail(
                unfinished,
                MemoryError(
                    f"out of memory with a single row of {prompt} tokens: backend.batch_size is "
                    "at 1, so lower model.max_length or the caps in sampling"
                ),
            )
        self.size = len(batch) // 2
        self._waiting += unfinished
        ended = len(batch) - len(unfinished)
        tokens = sum(len(queued.sequence.token_ids) for queued in unfinished)
        self._halved.append({"rows": len(batch), "ended": ended, "tokens": tokens})
        _LOG.warning(
            "out of memory with %d rows, of which %d have ended and the others keep the %d tokens "
            "that they have: backend.batch_size goes on as %d",
            *(len(batch), ended, tokens, self.size),
        )
