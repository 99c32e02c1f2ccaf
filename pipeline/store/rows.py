"""The rows of a run folder as one writer sees them: appended, looked up, and settled at the end."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from io import FileIO
from pathlib import Path

from pipeline.store.files import (
    AppendFile,
    Fence,
    Line,
    Row,
    StoreError,
    encode,
    repair,
    write_atomically,
)
from pipeline.store.row_heads import Key, head_of, is_keyed, key_of, read_heads
from pipeline.store.row_index import Index, Place, part_path, parts_of, read_bytes

NUM_REFRESHES = 20  # looks at a folder whose files are being merged meanwhile


class Rows:
    """One writer's view of the rows of a run folder. A lease keeps other writers off its file.

    Alone it appends to `path`; as one of several to its own part beside it. `complete` holds the
    keys whose row satisfies `is_complete`, as appended rows do.
    """

    def __init__(
        self,
        path: Path,
        file: FileIO,
        is_complete: Callable[[Row], bool],
        fingerprint: str | None = None,
        fence: Fence | None = None,
    ) -> None:
        """`file` is open for appending: `path` itself or a part of it. See `open_rows`."""
        self.path, self.own, self.fence = path, Path(str(file.name)), fence
        self.num_bytes_cut = 0
        self.complete: set[Key] = set()
        self._is_complete, self._fingerprint = is_complete, fingerprint
        self._mutex = threading.Lock()
        self._file = AppendFile(file, fence)
        self._index = Index(fingerprint)
        self._read_to: dict[Path, tuple[int, int]] = {}  # file -> its inode, and the end of what is

    def refresh(self) -> None:
        """Take in what others appended, or all of it anew where files were replaced or removed."""
        with self._mutex:
            for _ in range(NUM_REFRESHES):
                try:
                    self._refresh()
                except FileNotFoundError:  # a part was merged into `path` after it was listed
                    self._read_to.clear()
                else:
                    return
        raise StoreError(f"{self.path}: its parts come and go faster than they can be read")

    def _refresh(self) -> None:
        parts = parts_of(self.path)  # first: what is not among the parts any more is in `path`
        stats = {path: path.stat() for path in (self.path, *parts) if path.exists()}
        for path, (inode, end) in self._read_to.items():
            stat = stats.get(path)
            if stat is None or stat.st_ino != inode or stat.st_size < end:
                self._read_to = {}
        if not self._read_to:
            self.complete.clear()
            self._index = Index(self._fingerprint)
        for path, stat in stats.items():
            _, start = self._read_to.get(path, (0, 0))
            if stat.st_size > start or path not in self._read_to:
                self._read_to[path] = stat.st_ino, self._index.read(path, self._note, start)

    def _note(self, head: Row) -> None:
        change = self.complete.add if self._is_complete(head) else self.complete.discard
        change(key_of(head))

    @property
    def lines(self) -> dict[Key, Place]:
        """Where the row of each key lies."""
        return self._index.places

    @property
    def index(self) -> Index:
        """What is known of all rows."""
        return self._index

    def append(self, row: Row) -> None:
        """Write one whole row; `flush` or `synced` bring it to disk. Thread-safe."""
        data = encode(row)
        with self._mutex:
            offset = self._file.append(data)
            self._index.add(row, Place(self.own, Line(offset, len(data))))
            self.complete.add(key_of(row))
            inode, end = self._read_to.get(self.own, (0, 0))
            if offset == end:  # else the file was changed from outside: `refresh` reads it anew
                self._read_to[self.own] = inode, offset + len(data)

    def reopen_if_removed(self) -> bool:
        """Begin a new part where the own one was merged; `refresh` then finds where rows went."""
        return self._file.reopen_if_removed()

    def flush(self) -> None:
        """Return once every row appended so far is on disk."""
        self._file.flush()

    async def synced(self) -> None:
        """`flush` for coroutines."""
        await self._file.synced()

    def read(self, key: Key) -> Row:
        """The current row of a key. Raises KeyError without one."""
        row: Row = json.loads(self._line_of(key))
        return row

    def _line_of(self, key: Key) -> bytes:
        """The line of a key's row, which is looked at: it may have been changed from outside."""
        place = self.lines[key]
        raw = read_bytes(place)
        head = head_of(raw)
        if head is None or not is_keyed(head) or key_of(head) != key or not self._is_ours(head):
            if self.fence:
                self.fence.check()  # a lost lease says more than the changed line that it causes
            raise StoreError(
                f"{place.path}: the line at byte {place.line.offset} is no longer the row of "
                f"{key.example_id}, sample {key.sample_idx}: the file was changed while it was in "
                "use; start again"
            )
        return raw

    def _is_ours(self, head: Row) -> bool:
        return self._fingerprint is None or head.get("fingerprint") in (None, self._fingerprint)

    def refuse_foreign(self) -> None:
        """Refuse a file that holds rows of another spec. Raises StoreError."""
        if self._index.foreign:
            place, head = self._index.foreign
            raise StoreError(
                f"{place.path}: the line at byte {place.line.offset} ({head['example_id']}, sample "
                f"{head['sample_idx']}) is of fingerprint {str(head['fingerprint'])[:8]}, another "
                f"spec than this one ({str(self._fingerprint)[:8]}), whose rows do not count here; "
                "move the file away, or choose another run.dir or run.name"
            )

    def settle(self, order: Sequence[Key]) -> None:
        """Give `path` its final form, atomically: one line per key, in `order`, strangers after.

        Parts are merged into it and removed; broken lines go to `<file>.broken`. Does nothing where
        the file is that already. Only for who holds the lease on the whole.

        Raises:
            StoreError: the lease is lost, or the rows were changed meanwhile; nothing is replaced.
        """
        self.refresh()
        self.refuse_foreign()
        parts = parts_of(self.path)
        wanted = [key for key in order if key in self.lines]
        wanted += sorted(set(self.lines) - set(wanted))
        current = sorted(self.lines, key=lambda key: self.lines[key].line.offset)
        index = self._index
        if parts or wanted != current or index.num_superseded or index.num_broken:
            broken = [read_bytes(place) for place in self._broken_lines()]
            if broken:
                path = self.path.with_name(f"{self.path.name}.broken")
                write_atomically(path, broken, self.fence)
            settled = (self._line_of(key).rstrip(b"\n") + b"\n" for key in wanted)
            write_atomically(self.path, settled, self.fence)
        for part in parts:
            if self.fence:
                self.fence.check()
            part.unlink(missing_ok=True)

    def _broken_lines(self) -> Iterator[Place]:
        """Whole lines that are no rows; a torn end of a dead writer's part is none."""
        for path in (self.path, *parts_of(self.path)):
            for line, head, _ in read_heads(path) if path.exists() else ():
                if head is None:
                    yield Place(path, line)

    def close(self) -> None:
        """Close the file; an empty part of one's own goes."""
        self._file.close()
        if self.own != self.path and self.own.exists() and self.own.stat().st_size == 0:
            self.own.unlink()


def open_rows(
    path: Path,
    is_complete: Callable[[Row], bool] = lambda head: True,
    part: str | None = None,
    fingerprint: str | None = None,
    fence: Fence | None = None,
) -> Rows:
    """Open the rows of a folder for writing: alone, or to the part named `part`.

    Repairs torn ends where nobody else can be writing, and indexes what is there.

    Raises:
        StoreError: the files hold rows of another fingerprint, or a row that is none of this
            version.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    num_bytes_cut = 0 if part else sum(repair(p) for p in (path, *parts_of(path)))
    file = FileIO(part_path(path, part) if part else path, "ab")
    rows = Rows(path, file, is_complete, fingerprint, fence)
    rows.num_bytes_cut = num_bytes_cut
    try:
        rows.refresh()
        rows.refuse_foreign()
    except BaseException:
        rows.close()
        raise
    return rows


def gather(path: Path, fence: Fence | None = None) -> None:
    """Append the parts beside `path` to it, and remove them."""
    parts = parts_of(path)
    if parts:
        files = [file for file in (path, *parts) if file.exists()]
        write_atomically(path, (file.read_bytes() for file in files), fence)
    for part in parts:
        part.unlink(missing_ok=True)
