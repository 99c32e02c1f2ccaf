"""Decides which samples this process works on.

That is all of them, or, with `run.shards`, one of 256 chunks at a time beside other processes.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from pipeline.protocols import Example
from pipeline.store.files import Fence, StoreError
from pipeline.store.leases import Held, Lease, Leases, Raced
from pipeline.store.row_heads import Key

NUM_CHUNKS = 256  # fixed by the example's id alone, so any number of shards agrees on them
ALONE, MERGE, CHUNK = "all", "merge", "chunk-"
CHARACTERS_PER_TRACE = 200  # what even the shortest question costs
MERGE_SECONDS = 10.0  # how long the lease for merging is waited for
POLL_SECONDS = 0.1  # between two looks at who merges

Traces = list[tuple[Example, int]]


class OpenChunk(NamedTuple):
    """A chunk under way: its lease, and its traces that have not ended."""

    lease: Lease
    keys: set[Key]


class Claims:
    """The work of one writer on one point.

    Alone in the folder (`run.shards` 1) it holds one lease on everything, from the start to the
    end. Beside others it takes a chunk whenever it has room for traces, the longest first.
    """

    def __init__(
        self,
        leases: Leases,
        shared: bool,
        traces: Sequence[tuple[Example, int]],
        work: str = "",
    ) -> None:
        """Nothing is taken yet.

        Args:
            leases: of this writer.
            shared: whether it is one of several.
            traces: those of the whole point, finished or not.
            work: equal for writers that make the same rows, with the same passes, of a chunk.
        """
        self.leases, self.shared = leases, shared
        leases.work = work
        self.chunks = split(traces) if shared else {ALONE: list(traces)}
        self.open_chunks: dict[str, OpenChunk] = {}
        self.whole_lease: Lease | None = None
        self._untaken = list(self.chunks)
        self._ended_chunks: list[Path] = []

    def enter(self) -> None:
        """Come in beside the others, or alone. Raises Held while that cannot be."""
        self.leases.enter()
        with self.undo_on_error():
            if self.shared:
                self._see_that_nobody_is_alone()
            else:
                self.whole_lease = self._be_alone()

    def _be_alone(self) -> Lease:
        lease = self.leases.take(ALONE)
        for writer, alive in self.leases.others().items():
            if alive is not False:
                self.leases.give_back(lease)
                raise Held(ALONE, writer, bool(alive))
        self.leases.bury()
        for name in (CHUNK, MERGE):
            self.leases.clear(name)
        return lease

    def _see_that_nobody_is_alone(self) -> None:
        while True:
            try:
                return self.leases.fence_off(ALONE)
            except Raced:
                time.sleep(0.05)

    def lost_to_single_writer(self) -> bool:
        """Whether one of several finds another alone in the folder, who took it for dead."""
        try:
            self._see_that_nobody_is_alone()
        except Held:
            return True
        return False

    def take(self, left: Callable[[str], Traces]) -> Lease | None:
        """The next chunk that can be had and of which traces are `left`; each is taken once.

        None where nothing is left, or others hold it.
        """
        for name in filter(left, list(self._untaken)):
            try:
                lease = self.whole_lease or self._take_chunk(name)
            except Held:
                continue
            self._untaken.remove(name)
            return lease
        return None

    def _take_chunk(self, name: str) -> Lease:
        """Take a chunk, once nobody merges: of two who look at each other's lease one sees it.

        Whoever died while merging is kept from going on with it.
        """
        while True:
            lease = self.leases.take(name)
            try:
                self.leases.fence_off(MERGE)
            except Held:
                self.leases.give_back(lease)
                time.sleep(POLL_SECONDS)
            else:
                return lease

    def start(self, lease: Lease, traces: Traces) -> None:
        """The traces of a chunk begin."""
        self.open_chunks[lease.name] = OpenChunk(lease, {Key(e.id, sample) for e, sample in traces})
        if not traces:
            self._give_back_if_ended(lease.name)

    def held(self, key: Key) -> bool:
        """Whether this writer may still write the row of `key`."""
        lease = self.whole_lease or self.open_chunks[chunk_of(key.example_id)].lease
        return self.leases.held(lease)

    def ended(self, key: Key) -> None:
        """A trace ended, well or not; with its last one the chunk is given back."""
        name = ALONE if self.whole_lease else chunk_of(key.example_id)
        self.open_chunks[name].keys.discard(key)
        self._give_back_if_ended(name)

    def _give_back_if_ended(self, name: str) -> None:
        chunk = self.open_chunks[name]
        if not chunk.keys and not self.whole_lease:
            del self.open_chunks[name]
            self.leases.give_back(chunk.lease)

    def may_get_more(self, left: Callable[[str], Traces]) -> bool:
        """Whether chunks that this writer has not had may come to it.

        Others have given them back with something left, are dead, are not known to live, or were
        asked for less: then something will be left.
        """
        return any(not self._is_cared_for(name) for name in self._untaken if left(name))

    def _is_cared_for(self, name: str) -> bool:
        """Whether somebody else is at all that this writer would do of a chunk."""
        return self.leases.has_living_holder(name) and self.leases.has_equal_holder(name)

    def elsewhere(self, left: Callable[[str], Traces]) -> bool:
        """Whether everything that is left is in the hands of other writers."""
        names = [name for name in self.chunks if self.shared and left(name)]
        return bool(names) and all(
            name not in self.open_chunks and self.leases.has_equal_holder(name) for name in names
        )

    def try_merge_lease(self) -> Lease | None:
        """The lease for what one writer does for all at the end.

        None if another is at it, or will be: those who still hold chunks, perhaps with samples of
        which this writer was not told, need their parts and journals. Waits, in a thread, for
        `MERGE_SECONDS` at most.
        """
        for _ in range(int(MERGE_SECONDS / POLL_SECONDS)):
            try:
                lease = self.whole_lease or self.leases.take(MERGE)
            except Held:
                time.sleep(POLL_SECONDS)
                continue
            self._ended_chunks = self.leases.files(CHUNK)
            if self.whole_lease or not self.leases.held_by_others(CHUNK):
                return lease
            self.leases.give_back(lease)
            return None
        return None

    def merge_done(self, lease: Lease) -> None:
        """All rows are in one file: the chunks' leases from before mean nothing any more."""
        self.open_chunks.clear()
        for path in self._ended_chunks:
            path.unlink(missing_ok=True)
        self.leases.bury()
        if not self.whole_lease:
            self.leases.give_back(lease)

    def fence(self, lease: Lease | None) -> Fence:
        """The fence of a writer that may write while it holds `lease`.

        One of several may write, and needs no lease for that, while nobody is alone in the folder.
        """
        folder = self.leases.folder.parent

        def check() -> None:
            is_lost = lease is not None and not self.leases.held(lease)
            is_lost = is_lost or (self.shared and self.lost_to_single_writer())
            if is_lost and not folder.exists():
                raise StoreError(f"{folder} was removed while it was written to; start again")
            if is_lost:
                raise StoreError(f"another process has taken {folder} over; this one ends")

        return Fence(self.leases.writer, check)

    @contextmanager
    def undo_on_error(self) -> Iterator[None]:
        """Give everything back if the block fails."""
        with ExitStack() as undo:
            undo.callback(self.close)
            yield
            undo.pop_all()

    def close(self) -> None:
        """Give everything back, unfinished."""
        for chunk in self.open_chunks.values():
            self.leases.give_back(chunk.lease)
        if self.whole_lease:
            self.leases.give_back(self.whole_lease)
        self.leases.close()


def split(traces: Sequence[tuple[Example, int]]) -> dict[str, Traces]:
    """Traces by chunk, the chunk with the most to expect first."""
    names: dict[str, str] = {}
    chunks: dict[str, Traces] = {}
    for example, sample in traces:
        name = names.get(example.id)
        if name is None:
            name = names[example.id] = chunk_of(example.id)
        chunks.setdefault(name, []).append((example, sample))
    cost = {name: sum(map(expected_cost, members)) for name, members in chunks.items()}
    return dict(sorted(chunks.items(), key=lambda item: (-cost[item[0]], item[0])))


def chunk_of(example_id: str) -> str:
    """The chunk of an example: all of its samples are in the same one."""
    digest = hashlib.sha256(example_id.encode("utf-8", "surrogatepass")).digest()
    return f"{CHUNK}{int.from_bytes(digest[:4], 'big') % NUM_CHUNKS:03d}"


def expected_cost(trace: tuple[Example, int]) -> int:
    """How long a trace may take, relative to others: longer questions get longer answers."""
    return CHARACTERS_PER_TRACE + len(trace[0].question)
