"""The page table of the prefix cache: which ids are cached, and in which pages.

This is bookkeeping only; no tensor is touched here. Pages (vLLM: blocks) hold equally many tokens.
Ids that two sequences start with are computed once: full pages are shared, and the filled part of
the next page is copied. A finished sequence retains its pages until another needs them; those of
finished traces are evicted first.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

_BLOCK = 8  # ids per prefix hash; the exact length of a common prefix is found id by id


@dataclass(slots=True, eq=False)
class CachedSequence:
    """Ids of one sequence; the keys and values of the first `computed` of them are in `pages`."""

    trace_id: int
    ids: list[int]
    pages: list[int] = field(default_factory=list)
    computed: int = 0
    active: bool = True
    prefix_hashes: list[int] = field(default_factory=list)  # those that it is found by


@dataclass(frozen=True, slots=True)
class PrefixQuery:
    """Ids that are to be computed, and the hashes of their prefixes."""

    ids: list[int]
    prefix_hashes: list[int]

    @classmethod
    def of(cls, ids: list[int]) -> Self:
        """The query for `ids`."""
        return cls(ids, _prefix_hashes(ids))


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy the first `count` tokens of page `source` to page `target`."""

    source: int
    target: int
    count: int


@dataclass(frozen=True, slots=True)
class Allocation:
    """Pages for a sequence: once `copies` are made, its first `reused` ids are computed."""

    cached: CachedSequence
    reused: int
    copies: tuple[Copy, ...] = ()


class PageAllocator:
    """Hands out pages, finds shared prefixes, evicts finished sequences (vLLM: BlockManager)."""

    def __init__(self, count: int, size: int, divisible: bool = True) -> None:
        """`count` pages of `size` tokens each.

        What is cached can be reused up to any token if it is `divisible`, as keys and values are.
        A recurrent state is not: it can only be continued from its last token.
        """
        self.count = count
        self.size = size
        self.divisible = divisible
        self.evictions = 0
        self._free = list(range(count - 1, -1, -1))
        self._ref_counts = [0] * count
        # Finished sequences, least recently used first.
        self._retained: OrderedDict[CachedSequence, None] = OrderedDict()
        self._num_retained_pages = 0  # shared pages count once for every holder
        self._retained_of_trace: dict[int, dict[CachedSequence, None]] = {}
        self._by_prefix: dict[int, CachedSequence] = {}

    def num_pages(self, tokens: int) -> int:
        """Pages that `tokens` tokens fill."""
        return -(-tokens // self.size)

    @property
    def num_available(self) -> int:
        """Upper bound of the pages that can be handed out: free ones and retained ones."""
        return len(self._free) + self._num_retained_pages

    def must_wait(self, query: PrefixQuery) -> bool:
        """Whether an active sequence is about to compute a longer prefix of the query."""
        source, shared = self._longest_prefix(query) if self.divisible else (None, 0)
        return source is not None and source.active and source.computed < shared

    def allocate(self, trace_id: int, query: PrefixQuery, share: bool = True) -> Allocation | None:
        """Pages for a query's ids; None if not enough are available.

        With `share`, the longest cached prefix is reused. The last id is always left to compute,
        since its logits are needed.
        """
        ids = query.ids
        source, shared = self._longest_prefix(query) if share else (None, 0)
        if source is not None and source in self._retained and shared >= source.computed:
            return self._take_over(source, trace_id, query)
        if not self.divisible:
            source, shared = None, 0
        shared = min(shared, source.computed) if source is not None else 0
        num_full, remainder = divmod(shared, self.size)
        shared_pages = source.pages[:num_full] if source is not None else []
        new_pages = self._take_pages(self.num_pages(len(ids)) - num_full, source)
        if new_pages is None:
            return None
        for page in shared_pages:
            self._ref_counts[page] += 1
        cached = CachedSequence(
            trace_id,
            list(ids),
            [*shared_pages, *new_pages],
            shared,
            prefix_hashes=list(query.prefix_hashes),
        )
        self._register(cached)
        copies: tuple[Copy, ...] = ()
        if remainder and source is not None:
            copies = (Copy(source.pages[num_full], new_pages[0], remainder),)
        return Allocation(cached, shared, copies)

    def extend(self, cached: CachedSequence, tokens: int) -> bool:
        """Give `cached` enough pages for `tokens` tokens in all; False if there are not enough."""
        missing = self.num_pages(tokens) - len(cached.pages)
        if missing <= 0:
            return True
        new_pages = self._take_pages(missing, None)
        if new_pages is None:
            return False
        cached.pages += new_pages
        return True

    def retain(self, cached: CachedSequence) -> None:
        """The sequence has ended: its pages stay cached until they are needed."""
        unneeded = cached.pages[self.num_pages(cached.computed) :]
        del cached.pages[len(cached.pages) - len(unneeded) :]
        self._return_pages(unneeded)
        cached.active = False
        self._register(cached)
        self._add_retained(cached)

    def free(self, cached: CachedSequence) -> None:
        """Forget the sequence and return its pages."""
        if cached in self._retained:
            self._remove_retained(cached)
        for key in cached.prefix_hashes:
            if self._by_prefix.get(key) is cached:
                del self._by_prefix[key]
        self._return_pages(cached.pages)
        cached.pages, cached.computed, cached.active = [], 0, False

    def unused(self, pages: Iterable[int]) -> list[int]:
        """The pages among `pages` that no sequence holds."""
        return [page for page in pages if not self._ref_counts[page]]

    def release(self, trace_id: int) -> None:
        """The trace is over: its retained sequences are evicted before all others."""
        for cached in self._retained_of_trace.get(trace_id, ()):
            self._retained.move_to_end(cached, last=False)

    def _add_retained(self, cached: CachedSequence) -> None:
        self._retained[cached] = None
        self._num_retained_pages += len(cached.pages)
        self._retained_of_trace.setdefault(cached.trace_id, {})[cached] = None

    def _remove_retained(self, cached: CachedSequence) -> None:
        del self._retained[cached]
        self._num_retained_pages -= len(cached.pages)
        siblings = self._retained_of_trace[cached.trace_id]
        del siblings[cached]
        if not siblings:
            del self._retained_of_trace[cached.trace_id]

    def _take_over(
        self, source: CachedSequence, trace_id: int, query: PrefixQuery
    ) -> Allocation | None:
        """Continue in the pages of a finished sequence whose cached ids all start the query."""
        ids = query.ids
        pages, computed = source.pages, min(source.computed, len(ids) - 1)
        self._remove_retained(source)
        new_pages = self._take_pages(max(0, self.num_pages(len(ids)) - len(pages)), None)
        if new_pages is None:
            self._add_retained(source)
            return None
        source.pages = []
        self.free(source)
        cached = CachedSequence(
            trace_id,
            list(ids),
            [*pages, *new_pages],
            computed,
            prefix_hashes=list(query.prefix_hashes),
        )
        self._register(cached)
        return Allocation(cached, computed)

    def _longest_prefix(self, query: PrefixQuery) -> tuple[CachedSequence | None, int]:
        """The cached sequence that shares the longest prefix with the query, and its length.

        The length is at most that of all ids but the last.
        """
        by_prefix = self._by_prefix
        best = next(
            (by_prefix[key] for key in reversed(query.prefix_hashes) if key in by_prefix), None
        )
        if best is None:
            return None, 0
        return best, min(_common_prefix_length(best.ids, query.ids), len(query.ids) - 1)

    def _register(self, cached: CachedSequence) -> None:
        cached.prefix_hashes += _prefix_hashes(cached.ids, cached.prefix_hashes)
        self._by_prefix.update(dict.fromkeys(cached.prefix_hashes, cached))

    def _take_pages(self, count: int, spared: CachedSequence | None) -> list[int] | None:
        """`count` pages, after evicting finished sequences other than `spared`; None if too few."""
        while len(self._free) < count:
            victim = next((cached for cached in self._retained if cached is not spared), None)
            if victim is None:
                return None
            self.evictions += 1
            self.free(victim)
        new_pages = [self._free.pop() for _ in range(count)]
        for page in new_pages:
            self._ref_counts[page] = 1
        return new_pages

    def _return_pages(self, pages: Iterable[int]) -> None:
        for page in pages:
            self._ref_counts[page] -= 1
            if self._ref_counts[page] == 0:
                self._free.append(page)


def _prefix_hashes(ids: Sequence[int], known: Sequence[int] = ()) -> list[int]:
    """Hashes of the prefixes of `ids` that end at a multiple of the block, after the known ones."""
    key = known[-1] if known else 0
    hashes = []
    for start in range(len(known) * _BLOCK, len(ids) - _BLOCK + 1, _BLOCK):
        key = hash((key, *ids[start : start + _BLOCK]))
        hashes.append(key)
    return hashes


def _common_prefix_length(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common prefix of two lists of ids."""
    length, step = 0, min(len(left), len(right))
    while step:
        if left[length : length + step] == right[length : length + step]:
            length += step
            step = min(step, len(left) - length, len(right) - length)
        else:
            step //= 2
    return length
