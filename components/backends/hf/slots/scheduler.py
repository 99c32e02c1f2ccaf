"""Which rows run: admission, chunked prefill beside decoding, eviction, and what is over."""

import bisect
import math
import time
from collections.abc import Sequence
from typing import Protocol

from components.backends.hf.slots.pages import Copy, Opened, Pages, Wanted
from components.backends.hf.slots.rows import Drawn, Entry, Running

_NOT_FINITE = (
    "the model's logits are not finite: choose another quantization (float16 overflows in some "
    "models)"
)
_SOON = 8  # chunks of prompt tokens for which rows that decode may wait
_TOGETHER = 32  # rows that decode for each that is worth a prefill at once
_PATIENT = 4  # rows that wait for one that joins soon
_LOOK = 64  # prompts of waiting rows that are looked up in one step


class Steps(Protocol):
    """Computes steps on a device."""

    waits: int  # goes that a prefill may wait for others, as many as make up for its fixed cost

    def ahead(self, rows: int) -> int:
        """How many steps of so many rows to start in one go."""

    def prefill(self, parts: Sequence[tuple[Running, int]]) -> Drawn | None:
        """Compute the next `count` ids of every row; draw for those that have no more."""

    def decode(self, rows: Sequence[Running], steps: int) -> Drawn | None:
        """Start `steps` steps of all rows."""

    def collect(self, wait: bool) -> list[Drawn]:
        """What was started and is known by now, in order; all of it if `wait`."""

    def copy(self, copies: Sequence[Copy]) -> None:
        """Copy the starts of pages."""

    def wipe(self, pages: Sequence[int], count: int) -> None:
        """Put zeros for the first `count` tokens of pages."""

    def clear(self) -> None:
        """Let go of all memory."""


class Scheduler:
    """Rows and the pages they hold; `step` moves all of them on."""

    def __init__(self, steps: Steps, pages: Pages, slots: int, chunk: int, share: bool) -> None:
        """At most `slots` rows decode at once; at most `chunk` prompt tokens go in one step."""
        self.slots = slots
        self.pages = pages
        self.counters = {
            "prefilled_tokens": 0,
            "reused_tokens": 0,
            "evictions": 0,
            "preemptions": 0,
            "steps": 0,
            "most_rows": 0,
        }
        self.steps = steps
        self._chunk = chunk
        self._share = share
        self._deferred = 0  # goes for which rows have waited for their prefill
        self._waiting: list[Entry] = []
        self._running: list[Running] = []
        self._over: list[Entry] = []

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self._waiting or self._running)

    def entries(self) -> list[Entry]:
        """Every row that is not over."""
        return [*self._waiting, *self.running_entries()]

    def running_entries(self) -> list[Entry]:
        """Rows that have pages."""
        return [running.entry for running in self._running]

    def add(self, entry: Entry) -> None:
        """Let a row wait; rows of earlier traces go first."""
        bisect.insort(self._waiting, entry, key=lambda e: e.order)

    def release(self, trace: int) -> None:
        """Forget what the trace has cached."""
        self.pages.release(trace)

    def describe(self) -> dict[str, int]:
        """Counters so far, and the cache's size in tokens."""
        pages = self.pages
        evictions = self.counters["evictions"] + pages.evictions
        size = pages.count * pages.size
        return self.counters | {"evictions": evictions, "cache_tokens": size}

    def clear(self) -> None:
        """Let go of all memory."""
        self.counters["evictions"] += self.pages.evictions
        self.steps.clear()

    def step(self) -> list[Entry]:
        """Admit, prefill a chunk, decode, and return the rows that are over."""
        self._drop()
        self._admit()
        if self._due():
            self._prefill()
        ready, joining = self._ready(), [r for r in self._running if not r.started]
        if len(ready) >= self._worth(joining):
            self._decode(ready)
        for drawn in self.steps.collect(wait=not (ready or joining)):
            self._take(drawn)
        return self.finished()

    def finished(self) -> list[Entry]:
        """Rows that are over and were not handed out yet; a step that fails may leave some."""
        over, self._over = self._over, []
        return over

    def _due(self) -> bool:
        """Whether to prefill now, rather than once more rows have come that can go together."""
        joining = sum(not running.started for running in self._running)
        decoding = len(self._running) - joining
        enough = joining * _TOGETHER >= decoding or self._deferred >= self.steps.waits
        self._deferred = 0 if enough or not joining else self._deferred + 1
        return enough

    def _worth(self, joining: Sequence[Running]) -> int:
        """How many rows a decoding step is worth while others are about to join them.

        It costs little more with all. Rows with long prompts are not waited for as long.
        """
        tokens = sum(running.uncomputed for running in joining)
        return len(joining) * (_PATIENT if tokens <= _SOON * self._chunk else 1)

    def _drop(self) -> None:
        """Forget rows that nobody wants any more."""
        self._waiting = [entry for entry in self._waiting if not entry.row.over]
        for running in [running for running in self._running if running.row.over]:
            self._leave(running, keep=False)

    def _admit(self) -> None:
        """Give pages to waiting rows, the earliest traces first."""
        copies: list[Copy] = []
        self._open(copies)
        if copies:
            self.steps.copy(copies)

    def _open(self, copies: list[Copy]) -> None:
        tried, looked = 0, 0
        blocked: list[int] = []
        while len(self._running) < self.slots and tried < len(self._waiting) and looked < _LOOK:
            entry = self._waiting[tried]
            wanted = entry.wanted = entry.wanted or Wanted.of(entry.row.ids)
            if wanted.ids == blocked:  # another sample of a prompt that is being computed
                tried += 1
                continue
            looked += 1
            if self._share and self.pages.must_wait(wanted):
                blocked = wanted.ids
                tried += 1
                continue
            room = self.pages.needed(len(wanted.ids) + 1) + len(self._running)
            if self._running and self.pages.spare < room:
                return
            opened = self._opened(entry, wanted)
            if opened is None and self._running:
                return
            del self._waiting[tried]
            if opened is None:
                self._refuse(entry)
                continue
            copies += opened.copies
            self._start(entry, opened)

    def _opened(self, entry: Entry, wanted: Wanted) -> Opened | None:
        trace = entry.row.request.trace_id
        opened = self.pages.open(trace, wanted, self._share)
        if opened is None and not self._running:  # with the pages of what it shares, too
            opened = self.pages.open(trace, wanted, share=False)
        return opened

    def _start(self, entry: Entry, opened: Opened) -> None:
        entry.wanted = None
        entry.row.started = entry.row.started or time.perf_counter()
        running = Running(entry, opened.held)
        running.started = running.uncomputed == 1
        self._running.append(running)
        self.counters["reused_tokens"] += opened.reused
        self.counters["most_rows"] = max(self.counters["most_rows"], len(self._running))

    def _prefill(self) -> None:
        """One chunk of prompt tokens, of the rows that came first."""
        parts: list[tuple[Running, int]] = []
        room = self._chunk
        for running in self._running:
            count = 0 if running.started else min(room, running.uncomputed)
            if count:
                parts.append((running, count))
                room -= count
        if parts:
            self.counters["prefilled_tokens"] += self._chunk - room
            drawn = self.steps.prefill(parts)
            if drawn is not None:
                self._take(drawn)

    def _ready(self) -> list[Running]:
        """Rows that a decoding step moves on."""
        return [r for r in self._running if r.started and not r.exhausted]

    def _decode(self, rows: list[Running]) -> None:
        if not rows:
            return
        # Behind the end of the row that has most to come nothing is computed.
        most = max(running.row.left - running.ahead for running in rows)
        count = min(self.steps.ahead(len(rows)), most)
        for running in rows:
            while not running.gone and not self._extend(running, count):
                self._preempt()
        rows = [running for running in rows if not running.gone]
        if rows:
            self.counters["steps"] += count
            drawn = self.steps.decode(rows, count)
            if drawn is not None:
                self._take(drawn)

    def _extend(self, running: Running, count: int) -> bool:
        return self.pages.extend(running.held, running.held.computed + count)

    def _preempt(self) -> None:
        """Take the pages of the row that came last; it waits, and is computed again."""
        last = max(self._running, key=lambda running: running.entry.order)
        alone = len(self._running) == 1
        self._leave(last, keep=False)
        if alone:
            self._refuse(last.entry)
            return
        self.add(last.entry)
        self.counters["preemptions"] += 1

    def _refuse(self, entry: Entry) -> None:
        entry.error = MemoryError(
            f"the cache of {self.pages.count * self.pages.size} tokens holds no single row of "
            f"{len(entry.row.ids)} tokens and more: lower model.max_length or the caps in sampling"
        )
        self._over.append(entry)

    def _leave(self, running: Running, keep: bool) -> None:
        self._running.remove(running)
        running.gone = True
        if keep:
            self.pages.keep(running.held)
        else:
            self.pages.drop(running.held)

    def _take(self, drawn: Drawn) -> None:
        """Hand ids to their rows, and rows that are over out."""
        columns = (zip(*of, strict=True) for of in (drawn.tokens, drawn.entropies, drawn.logprobs))
        for running, tokens, entropies, logprobs in zip(drawn.rows, *columns, strict=True):
            if running.gone:
                continue
            running.ahead -= len(tokens)
            count = running.row.accept(tokens, entropies, logprobs)
            running.held.ids += tokens[:count]
            if not math.isfinite(sum(logprobs[:count])):
                running.entry.error = FloatingPointError(_NOT_FINITE)
                self._finish(running)
            elif running.row.reason is not None:
                self._finish(running)

    def _finish(self, running: Running) -> None:
        held = running.held
        if running.entry.error is not None:
            self._purge(running)
        else:
            held.computed = min(held.computed, len(held.ids) - 1)
            self._leave(running, keep=self._share)
        self._over.append(running.entry)

    def _purge(self, running: Running) -> None:
        """Leave nothing of a row that is not finite: behind a later row's end it would count."""
        count, pages = running.held.computed, running.held.pages
        self._leave(running, keep=False)
        unused = self.pages.unused(pages)
        self.steps.wipe(unused, min(count, self.pages.size))
