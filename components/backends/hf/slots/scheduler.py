"""Which sequences run: admission, chunked prefill beside decoding, preemption, and the end."""

import math
import time
from collections.abc import Sequence
from typing import Protocol

from components.backends.hf.phase_times import PhaseTimes
from components.backends.hf.slots.pages import Allocation, Copy, PageAllocator
from components.backends.hf.slots.sequences import ActiveSequence, DrawnTokens
from components.backends.hf.slots.waiting import WaitingQueue
from components.backends.hf.submission import QueuedSequence
from components.decoding.sampling import not_finite

_DECODING_PER_PREFILL = 32  # a prefill starts at once with one prompt per this many that decode
_DECODING_PER_JOINING = 4  # a decode launch waits if fewer decode, per sequence about to join
_SHORT_PREFILL = 8  # chunks: longer prefills are not waited for in that way


class Steps(Protocol):
    """Computes prefill and decode steps on a device."""

    # Decode launches by which a prefill may be postponed, so that more prompts share its fixed
    # cost.
    prefill_delay: int
    # Whether it draws from `changed_logits`; else sequences have no strategy.
    changes_logits: bool

    def steps_per_launch(self, num_sequences: int) -> int:
        """Decode steps that are started together for this many sequences."""

    def prefill(self, chunks: Sequence[tuple[ActiveSequence, int]]) -> DrawnTokens | None:
        """Compute the next `count` ids of every (sequence, count).

        An id is drawn for each sequence whose ids are all computed then. The results are returned
        here, or by a later `collect`.
        """

    def decode(self, sequences: Sequence[ActiveSequence], steps: int) -> DrawnTokens | None:
        """Start `steps` decode steps of all sequences; results as for `prefill`."""

    def collect(self, wait: bool) -> list[DrawnTokens]:
        """Results that have arrived, oldest first; with `wait`, all that are in flight."""

    def copy(self, copies: Sequence[Copy]) -> None:
        """Copy the starts of pages."""

    def wipe(self, pages: Sequence[int], count: int) -> None:
        """Write zeros to the first `count` tokens of pages."""

    def clear(self) -> None:
        """Free all memory."""


class Scheduler:
    """Moves all sequences on, a step at a time."""

    def __init__(
        self, steps: Steps, pages: PageAllocator, slots: int, chunk: int, share: bool
    ) -> None:
        """At most `slots` sequences are active; a step prefills at most `chunk` prompt tokens."""
        self.slots = slots
        self.pages = pages
        self.counters = {
            "prefilled_tokens": 0,
            "reused_tokens": 0,
            "evictions": 0,
            "preemptions": 0,
            "steps": 0,
            "peak_sequences": 0,
        }
        self.steps = steps
        self.phases = PhaseTimes(lambda: 0)
        self._chunk = chunk
        self._share = share
        self._prefill_postponed = 0  # launches by which the next prefill was postponed so far
        self._waiting = WaitingQueue(pages, share)
        self._active: list[ActiveSequence] = []
        self._finished: list[QueuedSequence] = []

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self._waiting or self._active)

    def unfinished(self) -> list[QueuedSequence]:
        """Every sequence that has not ended, waiting ones first."""
        return [*self._waiting, *self.active()]

    def active(self) -> list[QueuedSequence]:
        """Sequences that have pages."""
        return [active.queued for active in self._active]

    def add(self, queued: QueuedSequence) -> None:
        """Let a sequence wait for its turn."""
        self._waiting.add(queued)

    def release(self, trace_id: int) -> None:
        """The trace is over: what it has cached is evicted first."""
        self.pages.release(trace_id)

    def describe(self) -> dict[str, int]:
        """Counters so far, and the cache's size in tokens."""
        evictions = self.counters["evictions"] + self.pages.evictions
        size = {"cache_states": self.pages.count}
        if self.pages.divisible:
            size = {"cache_tokens": self.pages.count * self.pages.size}
        return self.counters | {"evictions": evictions} | size

    def clear(self) -> None:
        """Free all memory."""
        self.counters["evictions"] += self.pages.evictions
        self.steps.clear()

    def step(self) -> list[QueuedSequence]:
        """Admit, prefill a chunk, decode, and return the sequences that have ended."""
        self._remove_ended()
        self._admit()
        if self._prefill_is_due():
            self._prefill()
            self._admit()  # other samples of these prompts
        ready = [each for each in self._active if each.decoding and not each.exhausted]
        joining = [each for each in self._active if not each.decoding]
        if len(ready) >= self._min_decoding(joining):
            self._decode(ready)
        for drawn in self._collect(wait=not (ready or joining)):
            self._accept(drawn)
        return self.take_finished()

    def _collect(self, wait: bool) -> list[DrawnTokens]:
        if not self._active:
            return self.steps.collect(wait)
        with self.phases.of("decode"):
            return self.steps.collect(wait)

    def take_finished(self) -> list[QueuedSequence]:
        """Sequences that have ended and were not returned yet; a step that fails leaves some."""
        finished, self._finished = self._finished, []
        return finished

    def _prefill_is_due(self) -> bool:
        """Whether to prefill now, rather than once more prompts can share the call."""
        joining = sum(not active.decoding for active in self._active)
        decoding = len(self._active) - joining
        postponed = self._prefill_postponed
        due = joining * _DECODING_PER_PREFILL >= decoding or postponed >= self.steps.prefill_delay
        self._prefill_postponed = 0 if due or not joining else postponed + 1
        return due

    def _min_decoding(self, joining: Sequence[ActiveSequence]) -> int:
        """Sequences that make a decode launch worthwhile while others are about to join them.

        A launch costs little more with all of them.
        """
        tokens = sum(active.num_uncomputed for active in joining)
        short = tokens <= _SHORT_PREFILL * self._chunk
        return len(joining) * (_DECODING_PER_JOINING if short else 1)

    def _remove_ended(self) -> None:
        """Let go of sequences that were cancelled, or failed, since the last step."""
        self._finished += [each for each in self._waiting.remove_finished() if _failed(each)]
        for active in [active for active in self._active if active.sequence.finished]:
            self._remove(active, retain=False)
            if _failed(active.queued):
                self._finished.append(active.queued)

    def _admit(self) -> None:
        """Give pages to waiting sequences."""
        copies: list[Copy] = []
        for queued, allocation in self._waiting.admit(len(self._active), self.slots):
            if allocation is None:
                self._refuse(queued)
            else:
                copies += allocation.copies
                self._start(queued, allocation)
        if copies:
            self.steps.copy(copies)

    def _start(self, queued: QueuedSequence, allocation: Allocation) -> None:
        queued.sequence.start_time = queued.sequence.start_time or time.perf_counter()
        active = ActiveSequence(queued, allocation.cached)
        active.decoding = active.num_uncomputed == 1
        self._active.append(active)
        self.counters["reused_tokens"] += allocation.reused
        self.counters["peak_sequences"] = max(self.counters["peak_sequences"], len(self._active))

    def _prefill(self) -> None:
        """Compute one chunk of prompt tokens, of the sequences that came first."""
        chunks: list[tuple[ActiveSequence, int]] = []
        budget = self._chunk
        for active in self._active:
            count = 0 if active.decoding else min(budget, active.num_uncomputed)
            if count:
                chunks.append((active, count))
                budget -= count
        if chunks:
            self.counters["prefilled_tokens"] += self._chunk - budget
            with self.phases.of("prefill"):
                drawn = self.steps.prefill(chunks)
            self._accept(drawn)

    def _decode(self, sequences: list[ActiveSequence]) -> None:
        if not sequences:
            return
        # No step is started in which every sequence would be past its cap.
        longest = max(active.sequence.num_remaining - active.in_flight for active in sequences)
        count = min(self.steps.steps_per_launch(len(sequences)), longest)
        for active in sequences:
            while not active.removed and not self._extend(active, count):
                self._preempt()
        sequences = [active for active in sequences if not active.removed]
        if sequences:
            self.counters["steps"] += count
            with self.phases.of("decode"):
                drawn = self.steps.decode(sequences, count)
            self._accept(drawn)

    def _extend(self, active: ActiveSequence, count: int) -> bool:
        return self.pages.extend(active.cached, active.cached.computed + count)

    def _preempt(self) -> None:
        """Free the pages of the sequence that came last; it waits, and is recomputed later."""
        last = max(self._active, key=lambda active: active.queued.order)
        alone = len(self._active) == 1
        self._remove(last, retain=False)
        if alone:
            self._refuse(last.queued)
            return
        self.add(last.queued)
        self.counters["preemptions"] += 1

    def _refuse(self, queued: QueuedSequence) -> None:
        size = self.pages.count * self.pages.size
        error = MemoryError(
            f"the cache of {size} tokens cannot hold a single row of {len(queued.sequence.ids)} "
            "tokens and what follows: lower model.max_length or the caps in sampling"
        )
        queued.sequence.fail(error)
        self._finished.append(queued)

    def _remove(self, active: ActiveSequence, retain: bool) -> None:
        self._active.remove(active)
        active.removed = True
        if retain:
            self.pages.retain(active.cached)
        else:
            self.pages.free(active.cached)

    def _accept(self, drawn: DrawnTokens | None) -> None:
        """Append drawn ids to their sequences, and finish those that end with them."""
        if drawn is None:
            return
        columns = (zip(*of, strict=True) for of in (drawn.tokens, drawn.entropies, drawn.logprobs))
        for active, tokens, entropies, logprobs in zip(drawn.sequences, *columns, strict=True):
            if active.removed:
                continue
            active.in_flight -= len(tokens)
            count = active.sequence.accept(tokens, entropies, logprobs)
            active.cached.ids += tokens[:count]
            if not math.isfinite(sum(logprobs[:count])):
                active.sequence.fail(not_finite())
            if active.sequence.failure is not None or active.sequence.finish_reason is not None:
                self._finish(active)

    def _finish(self, active: ActiveSequence) -> None:
        cached = active.cached
        if _failed(active.queued):
            self._purge(active)
        else:
            cached.computed = min(cached.computed, len(cached.ids) - 1)
            self._remove(active, retain=self._share)
        self._finished.append(active.queued)

    def _purge(self, active: ActiveSequence) -> None:
        """Erase what a failed sequence left: masked attention multiplies it by 0, also a NaN."""
        count, pages = active.cached.computed, active.cached.pages
        self._remove(active, retain=False)
        unused = self.pages.unused(pages)
        self.steps.wipe(unused, min(count, self.pages.size))


def _failed(queued: QueuedSequence) -> bool:
    return queued.sequence.failure is not None
