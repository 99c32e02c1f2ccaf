"""A thread in which rows join and leave the decoder at every step."""

import asyncio
import itertools
import logging
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from components.backends.hf.batches import out_of_memory
from components.backends.hf.slots.rows import Entry
from components.backends.hf.slots.scheduler import Scheduler
from components.decoding.sequence import Decoded
from pipeline.protocols import Generation

_LOG = logging.getLogger(__name__)


class Engine:
    """Takes requests from an event loop, steps in a thread of its own, hands rows back."""

    def __init__(
        self, make: Callable[[int], Scheduler], slots: int, threads: int, device: torch.device
    ) -> None:
        """`make(slots)` makes a scheduler and its cache; again with fewer after out of memory."""
        self._make = make
        self._threads = threads
        self._device = device
        self._loop = asyncio.get_running_loop()
        self._serial = itertools.count()
        self._inbox: deque[Entry] = deque()
        self._released: deque[int] = deque()
        self._wake = threading.Event()
        self._closed = False
        self.scheduler = make(slots)
        self._thread = threading.Thread(target=self._run, name="decoder", daemon=True)
        self._thread.start()

    @property
    def capacity(self) -> int:
        """Traces that keep the slots full while some are being scored."""
        return self.scheduler.slots + max(2, self.scheduler.slots // 4)

    def describe(self) -> dict[str, Any]:
        """The decoder, its slots and counters, for the attempt record."""
        return {"decoder": "slots", "slots": self.scheduler.slots, **self.scheduler.describe()}

    async def submit(self, row: Decoded) -> Generation:
        """Wait for the row's end. Cancelling drops the row within a step."""
        if self._closed:
            raise RuntimeError("the backend is closed")
        future: asyncio.Future[Generation] = self._loop.create_future()
        self._inbox.append(Entry((row.request.trace_id, next(self._serial)), row, future))
        self._wake.set()
        try:
            return await future
        finally:
            row.dropped = row.reason is None
            self._wake.set()

    def release(self, trace: int) -> None:
        """What the trace has cached may go."""
        self._released.append(trace)

    async def close(self) -> None:
        """Drop all rows and wait for the thread, which ends within one step."""
        self._closed = True
        self._wake.set()
        await asyncio.to_thread(self._thread.join)
        self._abandon()

    def _abandon(self) -> None:
        """The thread is over: whoever still waits is told."""
        _hand_back(self.scheduler.finished())
        self.scheduler.clear()
        _fail([*self._inbox, *self.scheduler.entries()], RuntimeError("the backend was closed"))

    def _run(self) -> None:
        torch.set_num_threads(self._threads)  # holds for the calling thread
        try:
            if self._device.index is not None:
                torch.cuda.set_device(self._device)
            self._serve()
        finally:
            if not self._closed:
                self._closed = True
                self._loop.call_soon_threadsafe(self._abandon)

    def _serve(self) -> None:
        while not self._closed:
            self._wake.clear()
            self._take_in()
            try:
                over = self.scheduler.step()
            except (RuntimeError, MemoryError, ValueError, ArithmeticError) as error:
                self._recover(error)
                continue
            if over:
                self._loop.call_soon_threadsafe(_hand_back, over)
            if not over and self.scheduler.idle and not self._inbox:
                self._wake.wait()

    def _take_in(self) -> None:
        while self._inbox:
            self.scheduler.add(self._inbox.popleft())
        while self._released:
            self.scheduler.release(self._released.popleft())

    def _recover(self, error: Exception) -> None:
        """After out of memory go on with half the slots; else fail the rows that were under way."""
        self._loop.call_soon_threadsafe(_hand_back, self.scheduler.finished())
        rows = self.scheduler.running_entries()
        waiting = [entry for entry in self.scheduler.entries() if entry not in rows]
        slots = self.scheduler.slots // 2
        traceback.clear_frames(error.__traceback__)  # before others add theirs to it
        memory = out_of_memory(error)
        if memory and not slots:
            error = MemoryError(
                "out of memory with a single slot: lower model.max_length or the caps in sampling"
            )
        if memory and slots:
            _LOG.warning("out of memory with %d slots: going on with %d", slots * 2, slots)
            waiting += rows
        else:
            self._loop.call_soon_threadsafe(_fail, rows, error)
        old = self.scheduler
        old.clear()
        self.scheduler = self._make(max(1, slots) if memory else old.slots)
        self.scheduler.counters = old.counters
        for entry in waiting:
            self.scheduler.add(entry)


def _hand_back(over: Sequence[Entry]) -> None:
    for entry in over:
        if entry.future.done():
            continue
        if entry.error is not None:
            entry.future.set_exception(entry.error)
        else:
            entry.future.set_result(entry.row.generation())


def _fail(entries: Sequence[Entry], error: Exception) -> None:
    for entry in entries:
        if not entry.future.done():
            entry.future.set_exception(error)
