"""The thread in which sequences join and leave the decoder at every step."""

import asyncio
import logging
import threading
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from types import TracebackType
from typing import Any, TypeVar

import torch

from components.backends.hf.slots.scheduler import Scheduler
from components.backends.hf.submission import (
    QueuedSequence,
    Submissions,
    fail,
    hand_back,
)
from components.decoding.sequence import TokenSequence
from components.models.out_of_memory import out_of_memory
from pipeline.protocols import Generation

_LOG = logging.getLogger(__name__)
Result = TypeVar("Result")


class Engine:
    """Takes requests from an event loop, steps in a thread, and hands generations back."""

    def __init__(
        self, make: Callable[[int], Scheduler], slots: int, threads: int, device: torch.device
    ) -> None:
        """`make(slots)` makes a scheduler and its cache; again with fewer after out of memory."""
        self._make = make
        self._threads = threads
        self._device = device
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[QueuedSequence] = deque()
        self._released: deque[int] = deque()
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._wake = threading.Event()
        self._submissions = Submissions(self._inbox.append, self._wake.set)
        self._closed = False
        self._halved: list[dict[str, int]] = []  # what was kept each time that memory ran out
        self.scheduler = make(slots)
        self._thread = threading.Thread(target=self._run, name="decoder", daemon=True)
        self._thread.start()

    @property
    def capacity(self) -> int:
        """Traces that keep the slots full while some are being scored."""
        return self.scheduler.slots + max(2, self.scheduler.slots // 4)

    def describe(self) -> dict[str, Any]:
        """The decoder, its slots and counters, for the attempt record."""
        halved = {"out_of_memory": self._halved} if self._halved else {}
        about = {"decoder": "slots", "slots": self.scheduler.slots, **halved}
        return about | self.scheduler.describe()

    async def submit(self, sequence: TokenSequence) -> Generation:
        """As `Submissions.submit`."""
        return await self._submissions.submit(sequence)

    async def call(self, work: Callable[[], Result]) -> Result:
        """Run `work` in the decoder's thread, between two steps; the model is its own meanwhile.

        Raises:
            RuntimeError: the decoder is closed.
            Exception: what `work` raises.
        """
        future: Future[Result] = Future()
        self._calls.append((work, future))
        self._wake.set()
        if self._closed:
            future.cancel()
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if self._closed:
                raise RuntimeError("the backend was closed") from None
            raise

    def release(self, trace_id: int) -> None:
        """The trace is over: what it has cached is evicted first."""
        self._released.append(trace_id)

    async def close(self) -> None:
        """Drop all sequences and wait for the thread, which ends within one step."""
        self._closed = True
        self._wake.set()
        await asyncio.to_thread(self._thread.join)
        self._abandon(None)

    def _abandon(self, cause: BaseException | None) -> None:
        """The thread has ended: whoever still waits gets its error."""
        error = self._submissions.close(cause)
        hand_back(self.scheduler.take_finished())
        fail([*self._inbox, *self.scheduler.unfinished()], error)
        for _, future in self._calls:
            future.cancel()
        self.scheduler.clear()

    def _run(self) -> None:
        torch.set_num_threads(self._threads)  # holds for the calling thread
        with ExitStack() as stack:
            stack.push(self._stopped)
            if self._device.index is not None:
                torch.cuda.set_device(self._device)
            self._serve()

    def _stopped(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Report what ended the thread, unless it was `close`."""
        if not self._closed:
            self._closed = True
            _LOG.error("the decoder has stopped", exc_info=error)
            self._loop.call_soon_threadsafe(self._abandon, error)
        return isinstance(error, Exception)

    def _serve(self) -> None:
        while not self._closed:
            self._wake.clear()
            self._take_in()
            self._run_calls()
            try:
                finished = self.scheduler.step()
            except (RuntimeError, MemoryError, ValueError, ArithmeticError) as error:
                self._recover(error)
                continue
            if finished:
                self._loop.call_soon_threadsafe(hand_back, finished)
            if not finished and self.scheduler.idle and not (self._inbox or self._calls):
                self._wake.wait()

    def _run_calls(self) -> None:
        while self._calls and not self._closed:
            work, future = self._calls.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except Exception as error:  # whoever asked gets it; the decoder goes on
                future.set_exception(error)

    def _take_in(self) -> None:
        while self._inbox:
            self.scheduler.add(self._inbox.popleft())
        while self._released:
            self.scheduler.release(self._released.popleft())

    def _recover(self, error: Exception) -> None:
        """After out of memory go on with half the slots; else fail the active sequences."""
        self._loop.call_soon_threadsafe(hand_back, self.scheduler.take_finished())
        active = self.scheduler.active()
        waiting = [queued for queued in self.scheduler.unfinished() if queued not in active]
        slots = self.scheduler.slots // 2
        traceback.clear_frames(error.__traceback__)  # before others add theirs to it
        memory = out_of_memory(error)
        if memory and not slots:
            error = MemoryError(
                "out of memory with a single slot: lower model.max_length or the caps in sampling"
            )
        if memory and slots:
            tokens = sum(len(queued.sequence.token_ids) for queued in active)
            self._halved.append({"rows": len(active), "tokens": tokens})
            _LOG.warning(
                "out of memory with %d slots, whose %d rows keep the %d tokens that they have: "
                "going on with %d",
                *(self.scheduler.slots, len(active), tokens, slots),
            )
            waiting += active
        else:
            self._loop.call_soon_threadsafe(fail, active, error)
        old = self.scheduler
        old.clear()
        self.scheduler = self._make(max(1, slots) if memory else old.slots)
        self.scheduler.counters = old.counters
        for queued in waiting:
            self.scheduler.add(queued)
