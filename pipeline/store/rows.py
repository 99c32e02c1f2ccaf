"""The rows of a run folder: which line counts for a key, one writer's view, the finished file."""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import msgspec

from pipeline.store.files import (
    AppendFile,
    Fence,
    Line,
    Row,
    StoreError,
    decode,
    encode,
    repair,
    write_atomically,
)
from pipeline.store.pass_names import PASS_NAMES

NUM_REFRESHES = 20  # looks at a folder whose files are being merged meanwhile


class Key(NamedTuple):
    """What names a row in its file."""

    example_id: str
    sample_idx: int


class PassHead(TypedDict, total=False):
    """What of a pass the store looks at."""

    cue_hash: str | None
    tokens_total: int


# What of a row the store looks at. The parser skips the rest, which is nearly all of it.
_HEAD: dict[str, Any] = {
    "example_id": str,
    "sample_idx": int,
    "fingerprint": str | None,
    "grader": str | None,
    "attempt": int | None,
    **{name: PassHead | None for name in PASS_NAMES},
}
_typed_dict: Any = TypedDict  # called with fields that a type checker cannot see
_DECODER: msgspec.json.Decoder[Row] = msgspec.json.Decoder(
    _typed_dict("RowHead", _HEAD, total=False)
)


def head_of(raw: bytes) -> Row | None:
    """The head of a line (see `_HEAD`); the whole object where a field has another type than ours.

    None for a line that is no JSON object.
    """
    try:
        if not raw.isascii():
            raw.decode()  # the parser does not look into text that it skips
        return _DECODER.decode(raw)
    except (ValueError, RecursionError):
        return decode(raw)


class HeadLine(NamedTuple):
    """A line of a file of rows: where it lies, its head, and whether its newline is written."""

    line: Line
    head: Row | None  # None: it is no row
    is_whole: bool


def read_heads(path: Path, start: int = 0) -> Iterator[HeadLine]:
    """The lines from an offset on.

    A last line without newline is passed over unless it is a row: its writer may be at it.
    """
    with path.open("rb") as file:
        file.seek(start)
        for raw in file:
            head, is_whole = head_of(raw), raw.endswith(b"\n")
            head = head if head is not None and is_keyed(head) else None
            if head is not None or is_whole:
                yield HeadLine(Line(start, len(raw)), head, is_whole)
            start += len(raw)


def key_of(row: Row) -> Key:
    """The key of a row."""
    return Key(row["example_id"], row["sample_idx"])


def is_keyed(row: Row) -> bool:
    """Whether a JSON object names a row."""
    return isinstance(row.get("example_id"), str) and isinstance(row.get("sample_idx"), int)


class Place(NamedTuple):
    """Where a row lies: the file, and its line in bytes."""

    path: Path
    line: Line


def part_path(path: Path, writer: str) -> Path:
    """The file of one of several writers of the rows of `path`."""
    return path.with_name(f"{path.stem}.part-{writer}.jsonl")


def parts_of(path: Path) -> list[Path]:
    """The parts that several writers left beside `path`."""
    return sorted(path.parent.glob(f"{path.stem}.part-*.jsonl"))


def gather(path: Path, fence: Fence | None = None) -> None:
    """Append the parts beside `path` to it, and remove them."""
    parts = parts_of(path)
    if parts:
        files = [file for file in (path, *parts) if file.exists()]
        write_atomically(path, (file.read_bytes() for file in files), fence)
    for part in parts:
        part.unlink(missing_ok=True)


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of `path` and of the parts beside it, one per key, as a finished merge has them."""
    for place in index_rows([path, *parts_of(path)]).places.values():
        yield read_place(place)


def read_place(place: Place) -> Row:
    """The row that lies there."""
    row: Row = json.loads(read_bytes(place))
    return row


def read_bytes(place: Place) -> bytes:
    """The line that lies there."""
    with place.path.open("rb") as file:
        file.seek(place.line.offset)
        return file.read(place.line.length)


class Index:
    """Which row of several files counts for each key.

    Within a file the later one; between files the one with more passes, else the first file's.
    """

    def __init__(self, fingerprint: str | None = None) -> None:
        """With a `fingerprint`, rows that name another one do not count."""
        self.fingerprint = fingerprint
        self.places: dict[Key, Place] = {}
        self.foreign: tuple[Place, Row] | None = None  # the last row of another fingerprint
        self.num_broken = self.num_superseded = 0
        self.num_by_grader: dict[str | None, int] = {}
        self.last_attempt = 0  # the highest that a row names
        self._num_passes: dict[Key, int] = {}

    def add(self, head: Row, place: Place) -> bool:
        """Take a row in; whether it counts now."""
        if self.fingerprint and head.get("fingerprint") not in (None, self.fingerprint):
            self.foreign = place, head
            return False
        key, num_passes = key_of(head), sum(bool(head.get(name)) for name in PASS_NAMES)
        there = self.places.get(key)
        if there and there.path == place.path and there.line.offset == place.line.offset:
            self.places[key] = place  # the same line, read again once its newline is written
            return True
        self.num_superseded += there is not None
        grader = head.get("grader")
        self.num_by_grader[grader] = self.num_by_grader.get(grader, 0) + 1
        self.last_attempt = max(self.last_attempt, _number(head.get("attempt")))
        if there and there.path != place.path and num_passes <= self._num_passes[key]:
            return False
        self.places[key], self._num_passes[key] = place, num_passes
        return True

    def read(
        self, path: Path, seen: Callable[[Row], object] = lambda head: None, start: int = 0
    ) -> int:
        """Take in a file from an offset on; `seen` hears of the head of each row that counts.

        Returns the offset after the last whole line.

        Raises:
            StoreError: a row is none of this version; file and line are named.
        """
        end = start
        for line, head, is_whole in read_heads(path, start):
            if head is None:
                self.num_broken += 1
            elif self.add(head, Place(path, line)):
                try:
                    seen(head)
                except StoreError as error:
                    raise StoreError(f"{path}, the line at byte {line.offset}: {error}") from error
            end = line.offset + (line.length if is_whole else 0)
        return end


def index_rows(paths: Iterable[Path]) -> Index:
    """Read files of rows; those that are not there are passed over."""
    index = Index()
    for path in paths:
        if path.exists():
            index.read(path)
    return index


class AttemptCount(NamedTuple):
    """What rows say that an attempt made."""

    num_rows: int
    num_tokens: int


def count_attempts(path: Path) -> dict[int, AttemptCount]:
    """Rows and tokens of each attempt, by the rows of `path` and of its parts that count."""
    files = [file for file in (path, *parts_of(path)) if file.exists()]
    places, counts = index_rows(files).places, dict[int, AttemptCount]()
    for file in files:
        for line, head, _ in read_heads(file):
            if head and places[key_of(head)] == Place(file, line):
                attempt = _number(head.get("attempt"))
                rows, tokens = counts.get(attempt, (0, 0))
                counts[attempt] = AttemptCount(rows + 1, tokens + num_tokens(head))
    return counts


def num_tokens(row: Row) -> int:
    """Generated tokens of all passes, a `pass2` that repeats a lettered pass not counted twice."""
    repeated = "pass2" if row.get("pass2a") else None
    passes = [row[name] for name in PASS_NAMES if name != repeated and row.get(name)]
    return sum(_number(fields.get("tokens_total")) for fields in passes if isinstance(fields, dict))


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


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
