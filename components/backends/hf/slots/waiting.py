"""Sequences that wait for pages, and which of them may start."""

import bisect
from collections.abc import Iterator

from components.backends.hf.slots.pages import Allocation, PageAllocator, PrefixQuery
from components.backends.hf.submission import QueuedSequence

_MAX_VAIN_LOOKUPS = 64  # in one step, of prompts whose prefix is being computed


class WaitingQueue:
    """Queued sequences in order: those of earlier traces go first."""

    def __init__(self, pages: PageAllocator, share: bool) -> None:
        """`share`: whether sequences reuse cached prefixes of others."""
        self._pages = pages
        self._share = share
        self._queue: list[QueuedSequence] = []
        self._queries: dict[QueuedSequence, PrefixQuery] = {}  # of sequences looked at so far

    def __len__(self) -> int:
        """How many sequences wait."""
        return len(self._queue)

    def __iter__(self) -> Iterator[QueuedSequence]:
        """The waiting sequences in order."""
        return iter(self._queue)

    def add(self, queued: QueuedSequence) -> None:
        """Put a sequence in its place."""
        bisect.insort(self._queue, queued, key=lambda each: each.order)

    def remove_finished(self) -> list[QueuedSequence]:
        """Forget sequences that were cancelled or failed while they waited, and return them."""
        ended = [queued for queued in self._queue if queued.sequence.finished]
        for queued in ended:
            self._queue.remove(queued)
            self._queries.pop(queued, None)
        return ended

    def admit(self, num_active: int, slots: int) -> list[tuple[QueuedSequence, Allocation | None]]:
        """Take sequences that can start out of the queue, each with its pages.

        A sequence whose prefix another one is about to compute waits for that, so the prefix is
        computed once. None in place of pages: the whole cache is too small for the sequence.

        Args:
            num_active: sequences that have pages now.
            slots: sequences that may have pages at once.
        """
        admitted: list[tuple[QueuedSequence, Allocation | None]] = []
        index, vain_lookups = 0, 0
        blocked: list[int] = []
        while num_active < slots and index < len(self._queue) and vain_lookups < _MAX_VAIN_LOOKUPS:
            queued = self._queue[index]
            query = self._queries.get(queued) or PrefixQuery.of(queued.sequence.ids)
            self._queries[queued] = query
            if query.ids == blocked:  # another sample of a prompt that is being computed
                index += 1
                continue
            if self._share and self._pages.must_wait(query):
                vain_lookups += 1
                blocked = query.ids
                index += 1
                continue
            # One page more for every active sequence that grows, so none is preempted at once.
            needed = self._pages.num_pages(len(query.ids) + 1)
            needed += num_active if self._pages.divisible else 0
            if num_active and self._pages.num_available < needed:
                break
            allocation = self._allocate(queued, query, alone=not num_active)
            if allocation is None and num_active:
                break
            del self._queue[index], self._queries[queued]
            admitted.append((queued, allocation))
            num_active += allocation is not None
        return admitted

    def _allocate(
        self, queued: QueuedSequence, query: PrefixQuery, alone: bool
    ) -> Allocation | None:
        trace_id = queued.sequence.request.trace_id
        allocation = self._pages.allocate(trace_id, query, self._share)
        if allocation is None and alone:  # evict the pages of its own prefix, too
            allocation = self._pages.allocate(trace_id, query, share=False)
        return allocation
