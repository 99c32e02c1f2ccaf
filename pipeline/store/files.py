"""Files of JSON lines that survive a kill: replaced atomically, appended to, flushed, repaired."""

import asyncio
import json
import os
import secrets
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import IO, Any, NamedTuple

from pipeline.spec import SpecError, require

Row = dict[str, Any]

SCRATCH = ".tmp"  # ends the names of files that become others by a rename or a link
_TOKEN = secrets.token_hex(3)  # process numbers repeat between containers


class StoreError(RuntimeError):
    """A file of the run folder could not be written (full disk, read-only folder)."""


class Line(NamedTuple):
    """Where a row lies in its file, in bytes."""

    offset: int
    length: int


class Fence(NamedTuple):
    """Keeps a writer whose lease was taken over from replacing or removing files.

    `check` raises StoreError once the lease is lost. Scratch files carry the name of the `writer`:
    whoever takes the lease over removes them first (`remove_scratch`), so that a writer that was
    paused between its last check and the rename finds nothing to rename.
    """

    writer: str
    check: Callable[[], None]


def read_text(path: Path, key: str) -> str:
    """The text of a file that `key` names. Raises SpecError where it is none, or not UTF-8."""
    path = path.expanduser()
    require(path.is_file(), key, "name a file of text", str(path))
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        rule = f"name a file of UTF-8 text: convert it, such as with iconv ({error})"
        raise SpecError(f"{key} must {rule}, got {str(path)!r}") from error


def encode(value: object) -> bytes:
    """One JSON line, non-ASCII kept, half a surrogate pair as its escape: no UTF-8 has it.

    NaN and infinity are refused: no reader takes them.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace") + b"\n"


def decode(raw: bytes) -> Row | None:
    """The object of a JSON line; None for anything else."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):  # also bytes that are no UTF-8
        return None
    return value if isinstance(value, dict) else None


def read_lines(path: Path) -> Iterator[tuple[Line, Row | None]]:
    """Each line with its row; None for a line that is no JSON object."""
    if not path.exists():
        return
    with path.open("rb") as file:
        offset = 0
        for raw in file:
            yield Line(offset, len(raw)), decode(raw)
            offset += len(raw)


def write_atomically(path: Path, chunks: Iterable[bytes], fence: Fence | None = None) -> None:
    """Replace `path` as a whole: readers see the old or the new file, never a part.

    With a `fence`, its check comes right before the replacement.

    Raises:
        StoreError: it cannot be written, or the fence's lease is lost; nothing is left beside it.
    """
    scratch = _scratch(path, fence)
    try:
        with scratch.open("wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        if fence:
            fence.check()
        os.replace(scratch, path)
    except OSError as error:
        with suppress(OSError):
            scratch.unlink()
        if fence:
            fence.check()  # a lost lease says more than the missing scratch file that it causes
        raise StoreError(f"{path} cannot be written: {error.strerror}") from error
    except StoreError:
        scratch.unlink(missing_ok=True)
        raise


def create_once(path: Path, data: bytes) -> bool:
    """Create a file with its content unless it exists; of several contenders one gets True."""
    scratch = _scratch(path, None)
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


def _scratch(path: Path, fence: Fence | None) -> Path:
    writer = fence.writer if fence else f"{socket.gethostname()}-{os.getpid()}-{_TOKEN}"
    number = threading.get_ident()  # threads of one process may write one file at once
    return path.with_name(f".{path.name}.{writer}.{number}{SCRATCH}")


def remove_scratch(folder: Path, living: Collection[str]) -> None:
    """Remove what killed writers left of files under way; `living` writers keep theirs.

    A writer is called `<host>-<process>-<token>`; every scratch file of a living process stays.
    """
    processes = {writer.rpartition("-")[0] for writer in living}
    for path in folder.glob(f".*{SCRATCH}"):
        if not any(f".{process}-" in path.name for process in processes):
            path.unlink(missing_ok=True)


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


class AppendFile:
    """A file that many threads append lines to; one flush to disk serves all who wrote before."""

    def __init__(self, file: FileIO, fence: Fence | None = None) -> None:
        """`file` is open for appending. `fence` explains a file that was removed by a takeover."""
        self._file, self._fence = file, fence
        self._append_mutex, self._flush_mutex = threading.Lock(), threading.Lock()
        self.num_written = self._num_flushed = 0
        self._flush_under_way: asyncio.Future[None] | None = None

    def append(self, data: bytes) -> int:
        """Append whole lines. Returns their offset; `flush` or `synced` bring them to disk.

        Raises:
            StoreError: they did not fit, or the file was removed.
        """
        with self._append_mutex:
            if self._fence and os.fstat(self._file.fileno()).st_nlink == 0:
                self._fence.check()
            offset = append(self._file, data)
            self.num_written += 1
            return offset

    def reopen_if_removed(self) -> bool:
        """Go on in a new file of the same name where what was written is merged into another."""
        with self._flush_mutex, self._append_mutex:
            is_removed = os.fstat(self._file.fileno()).st_nlink == 0
            if is_removed:
                name = str(self._file.name)
                self._file.close()
                self._file = FileIO(name, "ab")
                self._num_flushed = self.num_written
            return is_removed

    def flush(self) -> None:
        """Return once everything appended so far is on disk. Thread-safe."""
        self._flush(self.num_written)

    def _flush(self, num_lines: int) -> None:
        with self._flush_mutex:
            if self._num_flushed >= num_lines or self._file.closed:
                return
            reached = self.num_written
            os.fsync(self._file.fileno())
            self._num_flushed = reached

    async def synced(self) -> None:
        """`flush` for any number of coroutines, which share one thread."""
        num_lines = self.num_written
        while self._num_flushed < num_lines and not self._file.closed:
            if self._flush_under_way is None or self._flush_under_way.done():
                work = asyncio.to_thread(self._flush, self.num_written)
                self._flush_under_way = asyncio.ensure_future(work)
            await asyncio.shield(self._flush_under_way)

    def close(self) -> None:
        """Close the file, once no flush is under way."""
        with self._flush_mutex:
            self._file.close()


def is_new_or_begins(path: Path, head: bytes) -> bool:
    """Whether there is no file, an empty one, or one of ours, which begins with `head`.

    What a user names as an output may be something else, such as the input, and is then not lost.
    """
    if not path.exists():
        return True
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(head)) in (b"", head)


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
        if decode(last) is not None:
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
        newline = file.read(at - begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        at = begin
    return 0
