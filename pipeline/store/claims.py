"""Which traces of a point this writer may run: all of them, or chunk by chunk beside others."""

import hashlib
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from pipeline.protocols import Example
from pipeline.store.leases import Held, Lease, Leases, Raced
from pipeline.store.rows import Key

CHUNKS = 256  # fixed by the example's id alone, so any number of shards agrees on them
ALONE, MERGE, CHUNK = "all", "merge", "chunk-"
PER_TRACE = 200  # characters that even the shortest question costs


class Open(NamedTuple):
    """A chunk under way: its lease, and its traces that have not ended."""

    lease: Lease
    keys: set[Key]


class Claims:
    """The work of one writer on one point.

    Alone in the folder (`run.shards` 1) it holds one lease on everything, from the start to the
    end. Beside others it takes a chunk whenever it has room for traces, the longest first.
    """

    def __init__(self, leases: Leases, shared: bool) -> None:
        """Come in beside the others, or alone. Raises Held while that cannot be."""
        self.leases, self.shared = leases, shared
        self.open: dict[str, Open] = {}
        self._tried: set[str] = set()
        self.whole: Lease | None = None
        leases.enter()
        with self.kept():
            self.whole = self._enter()

    def _enter(self) -> Lease | None:
        if self.shared:
            self._take_over_whole()
            return None
        whole = self.leases.take(ALONE)
        for writer, alive in self.leases.others().items():
            if alive is not False:
                self.leases.give_back(whole)
                raise Held(ALONE, writer, bool(alive))
        self.leases.bury()
        self.leases.clear(CHUNK)
        return whole

    def _take_over_whole(self) -> None:
        """See that nobody is alone in the folder; one who died there is fenced off."""
        while self.leases.state(ALONE) == "held":
            try:
                self.leases.give_back(self.leases.take(ALONE))
            except Raced:
                time.sleep(0.05)

    def chunks(self, todo: list[tuple[Example, int]]) -> dict[str, list[tuple[Example, int]]]:
        """`todo` by chunk, the one with the most to expect first. Alone: one chunk."""
        if not self.shared:
            return {ALONE: todo}
        found: dict[str, list[tuple[Example, int]]] = {}
        for example, sample in todo:
            found.setdefault(chunk_of(example.id), []).append((example, sample))
        cost = {name: sum(map(expected, traces)) for name, traces in found.items()}
        return dict(sorted(found.items(), key=lambda item: (-cost[item[0]], item[0])))

    def take(self, todo: list[tuple[Example, int]]) -> Lease | None:
        """The next chunk that can be had; each is taken once. None where others hold the rest."""
        for name in self.chunks(todo):
            if name not in self._tried:
                try:
                    lease = self.whole or self.leases.take(name)
                except Held:
                    continue
                self._tried.add(name)
                return lease
        return None

    def start(self, lease: Lease, traces: list[tuple[Example, int]]) -> None:
        """The traces of a chunk begin."""
        self.open[lease.name] = Open(lease, {Key(example.id, i) for example, i in traces})

    def held(self, key: Key) -> bool:
        """Whether this writer may still write the row of `key`."""
        lease = self.whole or self.open[chunk_of(key.example_id)].lease
        return self.leases.held(lease)

    def ended(self, key: Key) -> None:
        """A trace ended, well or not; with its last one the chunk is given back."""
        name = ALONE if self.whole else chunk_of(key.example_id)
        chunk = self.open[name]
        chunk.keys.discard(key)
        if not chunk.keys and not self.whole:
            del self.open[name]
            self.leases.give_back(chunk.lease)

    def in_doubt(self, todo: list[tuple[Example, int]]) -> bool:
        """Whether chunks that this writer has not had are held by writers not known to live."""
        left = [name for name in self.chunks(todo) if name not in self._tried]
        return any(self.leases.doubtful(name) for name in left)

    def elsewhere(self, todo: list[tuple[Example, int]]) -> bool:
        """Whether all of `todo` is in the hands of other writers."""
        left = [name for name in self.chunks(todo) if self.shared]
        return bool(left) and all(
            name not in self.open and self.leases.state(name) == "held" for name in left
        )

    def alone(self, seconds: float = 10.0) -> Lease | None:
        """The lease for what one writer does for all at the end; None if another is at it."""
        for _ in range(int(seconds / 0.1)):
            try:
                return self.whole or self.leases.take(MERGE)
            except Held:
                time.sleep(0.1)
        return None

    def merged(self, lease: Lease) -> None:
        """The rows are whole in one file: the chunks' leases mean nothing any more."""
        self.open.clear()
        self.leases.clear(CHUNK)
        self.leases.bury()
        if not self.whole:
            self.leases.give_back(lease)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Give everything back if the block fails."""
        with ExitStack() as undo:
            undo.callback(self.close)
            yield
            undo.pop_all()

    def close(self) -> None:
        """Give everything back, unfinished."""
        for chunk in self.open.values():
            self.leases.give_back(chunk.lease)
        if self.whole:
            self.leases.give_back(self.whole)
        self.leases.close()


def chunk_of(example_id: str) -> str:
    """The chunk of an example: all of its samples are in the same one."""
    number = int.from_bytes(hashlib.sha256(example_id.encode()).digest()[:4], "big") % CHUNKS
    return f"{CHUNK}{number:03d}"


def expected(trace: tuple[Example, int]) -> int:
    """How long a trace may take, relative to others: longer questions get longer answers."""
    return PER_TRACE + len(trace[0].question)
