"""Which ids have their keys and values cached, and in which pages. No tensor is touched here.

A sequence holds pages of equal size. Ids that two sequences start with are computed once: full
pages are shared, the part of a page behind them is copied. A sequence that is over keeps its pages
until another needs them; those of traces that are over go first.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

_BLOCK = 8  # prefixes are found by multiples of this many ids, then told apart id by id


@dataclass(slots=True, eq=False)
class Held:
    """Ids of one sequence; the first `computed` of them have keys and values in `pages`."""

    trace: int
    ids: list[int]
    pages: list[int] = field(default_factory=list)
    computed: int = 0
    active: bool = True
    keys: list[int] = field(default_factory=list)  # under which its prefixes are found


@dataclass(frozen=True, slots=True)
class Wanted:
    """Ids that are to be computed, and the keys under which their prefixes are found."""

    ids: list[int]
    keys: list[int]

    @classmethod
    def of(cls, ids: list[int]) -> Self:
        """What `ids` want."""
        return cls(ids, _keys(ids))


@dataclass(frozen=True, slots=True)
class Copy:
    """The first `count` tokens of page `source` are to be copied to page `target`."""

    source: int
    target: int
    count: int


@dataclass(frozen=True, slots=True)
class Opened:
    """A sequence that may run: `reused` of its ids need no computing once `copies` are made."""

    held: Held
    reused: int
    copies: tuple[Copy, ...] = ()


class Pages:
    """Hands out pages, finds shared prefixes, and takes pages back from whoever can spare them."""

    def __init__(self, count: int, size: int) -> None:
        """`count` pages of `size` tokens each."""
        self.count = count
        self.size = size
        self.evictions = 0
        self._free = list(range(count - 1, -1, -1))
        self._users = [0] * count
        self._kept: OrderedDict[Held, None] = OrderedDict()  # over, the longest unused first
        self._kept_pages = 0  # that they hold, shared ones as often as they are held
        self._of_trace: dict[int, dict[Held, None]] = {}  # the same by trace
        self._found: dict[int, Held] = {}

    def needed(self, tokens: int) -> int:
        """Pages that `tokens` tokens fill."""
        return -(-tokens // self.size)

    @property
    def spare(self) -> int:
        """Free pages, and those that sequences which are over could give (at most)."""
        return len(self._free) + self._kept_pages

    def must_wait(self, wanted: Wanted) -> bool:
        """Whether a running sequence is about to compute a prefix of what is wanted."""
        source, shared = self._longest(wanted)
        return source is not None and source.active and source.computed < shared

    def open(self, trace: int, wanted: Wanted, share: bool = True) -> Opened | None:
        """Pages for the ids, shared with what is cached as far as it goes; None if there are none.

        The last id is always left to compute: its logits are wanted.
        """
        ids = wanted.ids
        source, shared = self._longest(wanted) if share else (None, 0)
        if source is not None and source in self._kept and shared >= source.computed:
            return self._take_over(source, trace, wanted)
        shared = min(shared, source.computed) if source is not None else 0
        whole, part = divmod(shared, self.size)
        lent = source.pages[:whole] if source is not None else []
        taken = self._take(self.needed(len(ids)) - whole, source)
        if taken is None:
            return None
        for page in lent:
            self._users[page] += 1
        held = Held(trace, list(ids), [*lent, *taken], shared, keys=list(wanted.keys))
        self._register(held)
        copies: tuple[Copy, ...] = ()
        if part and source is not None:
            copies = (Copy(source.pages[whole], taken[0], part),)
        return Opened(held, shared, copies)

    def extend(self, held: Held, tokens: int) -> bool:
        """Give `held` pages for `tokens` tokens in all; False if there are none left."""
        missing = self.needed(tokens) - len(held.pages)
        if missing <= 0:
            return True
        taken = self._take(missing, None)
        if taken is None:
            return False
        held.pages += taken
        return True

    def keep(self, held: Held) -> None:
        """The sequence is over: its pages stay until they are needed."""
        spare = held.pages[self.needed(held.computed) :]
        del held.pages[len(held.pages) - len(spare) :]
        self._give(spare)
        held.active = False
        self._register(held)
        self._put(held)

    def drop(self, held: Held) -> None:
        """Forget the sequence and give its pages back."""
        if held in self._kept:
            self._unput(held)
        for key in held.keys:
            if self._found.get(key) is held:
                del self._found[key]
        self._give(held.pages)
        held.pages, held.computed, held.active = [], 0, False

    def unused(self, pages: Iterable[int]) -> list[int]:
        """Those of `pages` that no sequence holds."""
        return [page for page in pages if not self._users[page]]

    def release(self, trace: int) -> None:
        """The trace is over: what it has kept goes before all else that is kept."""
        for held in self._of_trace.get(trace, ()):
            self._kept.move_to_end(held, last=False)

    def _put(self, held: Held) -> None:
        self._kept[held] = None
        self._kept_pages += len(held.pages)
        self._of_trace.setdefault(held.trace, {})[held] = None

    def _unput(self, held: Held) -> None:
        del self._kept[held]
        self._kept_pages -= len(held.pages)
        same = self._of_trace[held.trace]
        del same[held]
        if not same:
            del self._of_trace[held.trace]

    def _take_over(self, source: Held, trace: int, wanted: Wanted) -> Opened | None:
        """Go on in the pages of a sequence that is over and holds nothing else."""
        ids = wanted.ids
        pages, computed = source.pages, min(source.computed, len(ids) - 1)
        self._unput(source)
        taken = self._take(max(0, self.needed(len(ids)) - len(pages)), None)
        if taken is None:
            self._put(source)
            return None
        source.pages = []
        self.drop(source)
        held = Held(trace, list(ids), [*pages, *taken], computed, keys=list(wanted.keys))
        self._register(held)
        return Opened(held, computed)

    def _longest(self, wanted: Wanted) -> tuple[Held | None, int]:
        """The cached sequence found to share the longest prefix with the ids, and its length.

        At most all ids but the last.
        """
        found = self._found
        best = next((found[key] for key in reversed(wanted.keys) if key in found), None)
        if best is None:
            return None, 0
        return best, min(_common(best.ids, wanted.ids), len(wanted.ids) - 1)

    def _register(self, held: Held) -> None:
        held.keys += _keys(held.ids, held.keys)
        self._found.update(dict.fromkeys(held.keys, held))

    def _take(self, count: int, spared: Held | None) -> list[int] | None:
        """`count` free pages; those of sequences that are over are taken, `spared`'s are not."""
        while len(self._free) < count:
            victim = next((held for held in self._kept if held is not spared), None)
            if victim is None:
                return None
            self.evictions += 1
            self.drop(victim)
        taken = [self._free.pop() for _ in range(count)]
        for page in taken:
            self._users[page] = 1
        return taken

    def _give(self, pages: Iterable[int]) -> None:
        for page in pages:
            self._users[page] -= 1
            if self._users[page] == 0:
                self._free.append(page)


def _keys(ids: Sequence[int], known: Sequence[int] = ()) -> list[int]:
    """One number for every prefix of `ids` that is a multiple of the block long, behind `known`."""
    key = known[-1] if known else 0
    keys = []
    for start in range(len(known) * _BLOCK, len(ids) - _BLOCK + 1, _BLOCK):
        key = hash((key, *ids[start : start + _BLOCK]))
        keys.append(key)
    return keys


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """How many ids two lists have in common from their start."""
    length, step = 0, min(len(left), len(right))
    while step:
        if left[length : length + step] == right[length : length + step]:
            length += step
            step = min(step, len(left) - length, len(right) - length)
        else:
            step //= 2
    return length
