"""The JSONL row store: append whole lines, read them back, repair what a kill tore."""

import fcntl
import json
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import IO, Any, NamedTuple

from pipeline.spec import SpecError

Row = dict[str, Any]


class StoreError(RuntimeError):
    """A file of the run folder could not be written (full disk, read-only folder)."""


class Key(NamedTuple):
    """What names a row in its file."""

    example_id: str
    sample_idx: int


class Line(NamedTuple):
    """Where a row lies in its file, in bytes."""

    offset: int
    length: int


def key_of(row: Row) -> Key:
    """The key of a row."""
    return Key(row["example_id"], row["sample_idx"])


def encode(value: object) -> bytes:
    """One JSON line, non-ASCII kept. NaN and infinity are refused: no reader takes them."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass") + b"\n"


def read_lines(path: Path) -> Iterator[tuple[Line, Row | None]]:
    """Each line with its row; None for a line that is no JSON object."""
    if not path.exists():
        return
    with path.open("rb") as file:
        offset = 0
        for raw in file:
            yield Line(offset, len(raw)), _decode(raw)
            offset += len(raw)


def _decode(raw: bytes) -> Row | None:
    try:
        value = json.loads(raw)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def write_atomically(path: Path, chunks: Iterable[bytes]) -> None:
    """Replace `path` as a whole: readers see the old or the new file, never a part."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with scratch.open("wb") as file:
        for chunk in chunks:
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    os.replace(scratch, path)


def append(file: FileIO, data: bytes) -> int:
    """Append whole lines; returns the offset. A part that did not fit is taken back: StoreError.

    The file is unbuffered: a buffer would write the refused part after all, later.
    """
    offset = file.seek(0, os.SEEK_END)
    left = memoryview(data)
    try:
        while left:
            left = left[file.write(left) :]
    except OSError as error:
        os.ftruncate(file.fileno(), offset)
        raise StoreError(f"{file.name} cannot be written: {error.strerror}") from error
    return offset


def repair(path: Path) -> int:
    """Cut a torn last line; complete one that lacks only its newline. Returns the bytes cut."""
    if not path.exists() or path.stat().st_size == 0:
        return 0
    with path.open("rb+") as file:
        data_end = file.seek(0, os.SEEK_END)
        start = _last_line_start(file, data_end)
        file.seek(start)
        last = file.read()
        if last.endswith(b"\n"):
            return 0
        if _decode(last) is not None:
            file.write(b"\n")
            return 0
        file.truncate(start)
        return len(last)


def _last_line_start(file: IO[bytes], end: int, block: int = 1 << 16) -> int:
    """Offset at which the last line begins; a final newline belongs to the line that it ends."""
    at = end - 1
    while at > 0:
        begin = max(0, at - block)
        file.seek(begin)
        found = file.read(at - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        at = begin
    return 0


class Rows:
    """One writer's view of one JSONL file of rows.

    A later row with the same key replaces the earlier one.
    """

    def __init__(self, path: Path, is_complete: Callable[[Row], bool] = lambda row: True) -> None:
        """Open for writing: take the lock, repair the tail, index what is there.

        `complete` holds the keys whose row satisfies `is_complete`; appended rows do.
        """
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock_file = _lock(path.with_name(f".{path.name}.lock"))
        self.cut_bytes = repair(path)
        self.lines: dict[Key, Line] = {}
        self.complete: set[Key] = set()
        self.broken = 0
        self._superseded = 0
        for line, row in read_lines(path):
            if row is None or "example_id" not in row or "sample_idx" not in row:
                self.broken += 1
            else:
                self._index(key_of(row), line)
                (self.complete.add if is_complete(row) else self.complete.discard)(key_of(row))
        self._file = FileIO(path, "ab")
        self._mutex = threading.Lock()

    def _index(self, key: Key, line: Line) -> None:
        self._superseded += key in self.lines
        self.lines[key] = line

    def append(self, row: Row) -> None:
        """Write one whole row and flush it to disk. Safe from several threads."""
        data = encode(row)
        with self._mutex:
            offset = append(self._file, data)
            os.fsync(self._file.fileno())
            self._index(key_of(row), Line(offset, len(data)))
            self.complete.add(key_of(row))

    def read(self, key: Key) -> Row:
        """The current row of a key. Raises KeyError without one."""
        line = self.lines[key]
        with self.path.open("rb") as file:
            file.seek(line.offset)
            row: Row = json.loads(file.read(line.length))
        return row

    def settle(self, order: Sequence[Key]) -> None:
        """Give the file its final form, atomically: one line per key, in `order`, strangers after.

        Broken lines go to `<file>.broken`. Does nothing where the file is that already.
        """
        wanted = [key for key in order if key in self.lines]
        wanted += sorted(set(self.lines) - set(wanted))
        current = sorted(self.lines, key=lambda key: self.lines[key].offset)
        if wanted == current and not self._superseded and not self.broken:
            return
        if self.broken:
            bad = [self._bytes(line) for line, row in read_lines(self.path) if row is None]
            write_atomically(self.path.with_name(f"{self.path.name}.broken"), bad)
        write_atomically(self.path, (self._bytes(self.lines[key]) for key in wanted))

    def _bytes(self, line: Line) -> bytes:
        with self.path.open("rb") as file:
            file.seek(line.offset)
            return file.read(line.length)

    def close(self) -> None:
        """Close the file and give the lock back."""
        self._file.close()
        self._lock_file.close()


def _lock(path: Path) -> IO[str]:
    """An exclusive lock, held until the file is closed or the process ends.

    Raises:
        SpecError: another process holds it.
    """
    file = path.open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip() or "another process"
        file.close()
        raise SpecError(
            f"{path.parent} is being written by {holder}; "
            "wait for it to end or choose another run.name"
        ) from None
    file.seek(0)
    file.truncate()
    file.write(f"process {os.getpid()} on {socket.gethostname()}")
    file.flush()
    return file
