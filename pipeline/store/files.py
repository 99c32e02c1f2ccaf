"""Files of JSON lines that survive a kill: replaced as a whole, appended to, flushed, repaired."""

import asyncio
import json
import os
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import IO, Any, NamedTuple

Row = dict[str, Any]


class StoreError(RuntimeError):
    """A file of the run folder could not be written (full disk, read-only folder)."""


class Line(NamedTuple):
    """Where a row lies in its file, in bytes."""

    offset: int
    length: int


def encode(value: object) -> bytes:
    """One JSON line, non-ASCII kept, half a surrogate pair as its escape: no UTF-8 has it.

    NaN and infinity are refused: no reader takes them.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace") + b"\n"


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
    """Replace `path` as a whole: readers see the old or the new file, never a part.

    Raises:
        StoreError: it cannot be written; nothing is left beside it.
    """
    scratch = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}.tmp")
    try:
        with scratch.open("wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except OSError as error:
        with suppress(OSError):
            scratch.unlink()
        raise StoreError(f"{path} cannot be written: {error.strerror}") from error


def create_once(path: Path, data: bytes) -> bool:
    """Create a file with its content unless it exists; of several contenders one gets True."""
    scratch = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}.new")
    try:
        scratch.write_bytes(data)
        os.link(scratch, path)  # decided by the server, also on NFS
    except FileExistsError:
        return False
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        scratch.unlink(missing_ok=True)
    return True


def append(file: FileIO, data: bytes) -> int:
    """Append whole lines; returns the offset. A part that did not fit is taken back: StoreError.

    The file is unbuffered: a buffer would write the refused part after all, later. A file that was
    removed or replaced meanwhile is refused: what went there would be lost.
    """
    if os.fstat(file.fileno()).st_nlink == 0:
        raise StoreError(f"{file.name} was removed while it was written to; start again")
    offset = file.seek(0, os.SEEK_END)
    left = memoryview(data)
    try:
        while left:
            left = left[file.write(left) :]
    except OSError as error:
        os.ftruncate(file.fileno(), offset)
        raise StoreError(f"{file.name} cannot be written: {error.strerror}") from error
    return offset


class Flush:
    """Flushes a file to disk for many threads: one flush serves all who wrote before it began."""

    def __init__(self, file: FileIO) -> None:
        """Nothing is written yet."""
        self._file = file
        self._mutex = threading.Lock()
        self.written = self._flushed = 0
        self._under_way: asyncio.Future[None] | None = None

    def reach(self, count: int) -> None:
        """Return once the first `count` writes are on disk; the writer counts them in `written`."""
        with self._mutex:
            if self._flushed >= count or self._file.closed:
                return
            reached = self.written
            os.fsync(self._file.fileno())
            self._flushed = reached

    async def reached(self, count: int) -> None:
        """`reach` for any number of coroutines, which share one thread."""
        while self._flushed < count and not self._file.closed:
            if self._under_way is None or self._under_way.done():
                work = asyncio.to_thread(self.reach, self.written)
                self._under_way = asyncio.ensure_future(work)
            await asyncio.shield(self._under_way)

    def close(self) -> None:
        """Close the file, once no flush is under way."""
        with self._mutex:
            self._file.close()


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
