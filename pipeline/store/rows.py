"""The rows of a run folder: which line counts for a key, one writer's view, the finished file."""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from pipeline.store.files import (
    Flush,
    Line,
    Row,
    append,
    encode,
    read_lines,
    repair,
    write_atomically,
)


class Key(NamedTuple):
    """What names a row in its file."""

    example_id: str
    sample_idx: int


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


def gather(path: Path) -> None:
    """Append the parts beside `path` to it, and remove them."""
    parts = parts_of(path)
    if parts:
        files = [file for file in (path, *parts) if file.exists()]
        write_atomically(path, (file.read_bytes() for file in files))
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

    def __init__(self) -> None:
        """Nothing yet."""
        self.places: dict[Key, Place] = {}
        self.broken = self.superseded = 0
        self._passes: dict[Key, int] = {}

    def add(self, row: Row, place: Place) -> bool:
        """Take a row in; whether it counts now."""
        key, passes = key_of(row), sum(name.startswith("pass") and bool(row[name]) for name in row)
        there = self.places.get(key)
        self.superseded += there is not None
        if there and there.path != place.path and passes <= self._passes[key]:
            return False
        self.places[key], self._passes[key] = place, passes
        return True


def index_rows(paths: Iterable[Path], seen: Callable[[Row], object] = lambda row: None) -> Index:
    """Read files of rows; `seen` hears of each row that counts, at the time it is read."""
    index = Index()
    for path in paths:
        for line, row in read_lines(path):
            if row is None or not is_keyed(row):
                index.broken += 1
            elif index.add(row, Place(path, line)):
                seen(row)
    return index


class Rows:
    """One writer's view of the rows of a run folder. A lease keeps other writers off its file.

    Alone it appends to `path`; as one of several to its own part beside it.
    """

    def __init__(
        self,
        path: Path,
        is_complete: Callable[[Row], bool] = lambda row: True,
        part: str | None = None,
    ) -> None:
        """Open for writing: repair the tail, index what is there.

        `complete` holds the keys whose row satisfies `is_complete`; appended rows do.
        """
        self.path, self.own = path, path if part is None else part_path(path, part)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._is_complete = is_complete
        self._mutex = threading.Lock()
        self.cut_bytes = 0 if part else sum(repair(p) for p in (path, *parts_of(path)))
        self.complete: set[Key] = set()
        self._index = Index()
        self._versions: dict[Path, tuple[int, int]] | None = None
        self.refresh()
        self._file = FileIO(self.own, "ab")
        self._flush = Flush(self._file)

    def refresh(self, parts: bool = True) -> None:
        """Index again what others changed: the merged file and, with `parts`, their parts."""
        with self._mutex:
            files = [p for p in (self.path, *parts_of(self.path)) if p.exists()]
            versions = {path: _version(path) for path in files if path != self.own}
            watched = versions if parts else {self.path}
            known = self._versions
            if known is not None and all(known.get(p) == versions.get(p) for p in watched):
                return
            self.complete.clear()
            self._index = index_rows(files, self._note)
            self._versions = versions

    def _note(self, row: Row) -> None:
        change = self.complete.add if self._is_complete(row) else self.complete.discard
        change(key_of(row))

    @property
    def lines(self) -> dict[Key, Place]:
        """Where the row of each key lies."""
        return self._index.places

    @property
    def broken(self) -> int:
        """Lines that are no rows."""
        return self._index.broken

    def append(self, row: Row, flush: bool = True) -> None:
        """Write one whole row and flush it to disk, or leave that to `synced`. Thread-safe."""
        data = encode(row)
        with self._mutex:
            offset = append(self._file, data)
            self._flush.written += 1
            written = self._flush.written
            self._index.add(row, Place(self.own, Line(offset, len(data))))
            self.complete.add(key_of(row))
        if flush:
            self._flush.reach(written)

    async def synced(self) -> None:
        """Return once every row appended so far is on disk."""
        await self._flush.reached(self._flush.written)

    def read(self, key: Key) -> Row:
        """The current row of a key. Raises KeyError without one."""
        return read_place(self.lines[key])

    def settle(self, order: Sequence[Key]) -> None:
        """Give `path` its final form, atomically: one line per key, in `order`, strangers after.

        Parts are merged into it and removed; broken lines go to `<file>.broken`. Does nothing where
        the file is that already. Only for who holds the lease on the whole.
        """
        parts = parts_of(self.path)
        wanted = [key for key in order if key in self.lines]
        wanted += sorted(set(self.lines) - set(wanted))
        current = sorted(self.lines, key=lambda key: self.lines[key].line.offset)
        if parts or wanted != current or self._index.superseded or self.broken:
            bad = [read_bytes(place) for place in self._bad_lines()]
            if bad:
                write_atomically(self.path.with_name(f"{self.path.name}.broken"), bad)
            whole = (read_bytes(self.lines[key]).rstrip(b"\n") + b"\n" for key in wanted)
            write_atomically(self.path, whole)
        for part in parts:
            part.unlink(missing_ok=True)

    def _bad_lines(self) -> Iterator[Place]:
        """Whole lines that are no rows; a torn end of a dead writer's part is none."""
        for path in (self.path, *parts_of(self.path)):
            lines = read_lines(path)
            places = [Place(path, line) for line, row in lines if row is None or not is_keyed(row)]
            yield from (place for place in places if read_bytes(place).endswith(b"\n"))

    def close(self) -> None:
        """Close the file; an empty part of one's own goes."""
        self._flush.close()
        if self.own != self.path and self.own.exists() and self.own.stat().st_size == 0:
            self.own.unlink()


def _version(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_ino, stat.st_size
