"""The journal: every finished Generation of an unfinished trace, so none is made twice."""

from collections.abc import Iterable
from dataclasses import fields
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import msgspec

from pipeline.protocols import Generation
from pipeline.store.files import (
    AppendFile,
    Fence,
    StoreError,
    encode,
    read_lines,
    repair,
    write_atomically,
)
from pipeline.store.row_heads import Key

PASS1 = "pass1"
FIELDS = tuple(field.name for field in fields(Generation))


class Entry(NamedTuple):
    """Names one generation: its row, its pass (`pass1` or the cue's hash) and its phase."""

    key: Key
    pass_id: str
    phase: str


class _JournalLine(msgspec.Struct):
    """A line of a journal, as it is checked."""

    example_id: str
    sample_idx: int
    phase: str
    generation: Generation
    pass_id: str = msgspec.field(name="pass")


class Journal:
    """Appends generations to `journal-<writer>.jsonl`; hands out those earlier attempts left."""

    def __init__(self, path: Path, fence: Fence | None = None) -> None:
        """Nothing is read or written yet; `open_journal` does."""
        self.path, self.fence = path, fence
        self._earlier: dict[Entry, Generation] = {}
        self._sizes: dict[Path, int] = {}  # bytes of other writers' files when they were read
        self._file: AppendFile | None = None

    def open(self, finished: set[Key], shared: bool) -> None:
        """Read what other writers left for rows that are not in `finished`, then open one's own.

        Alone in the folder (not `shared`) the files of earlier attempts are taken over.
        """
        if not shared:
            for path in self.path.parent.glob("journal-*.jsonl"):
                repair(path)
        self.learn(finished)
        if not shared and self._sizes:
            # Carried over first, deleted after: a kill between the two leaves doubles, never a gap.
            lines = (_encoded(entry, made) for entry, made in self._earlier.items())
            write_atomically(self.path, lines, self.fence)
            for path in self._sizes:
                path.unlink(missing_ok=True)
        self._file = AppendFile(FileIO(self.path, "ab"), self.fence)

    def learn(self, finished: set[Key]) -> None:
        """Read what other writers left since the last look; files that are gone are passed over."""
        for path in sorted(self.path.parent.glob("journal-*.jsonl")):
            try:
                size = path.stat().st_size
                if path != self.path and size != self._sizes.get(path):
                    self._read(path, finished)
                    self._sizes[path] = size
            except FileNotFoundError:  # its rows are finished and merged
                continue

    def _read(self, path: Path, finished: set[Key]) -> None:
        for line, item in read_lines(path):
            if item is None:
                continue
            try:
                read = msgspec.convert(item, _JournalLine)
            except msgspec.ValidationError as error:
                raise StoreError(
                    f"{path}: the line at byte {line.offset} is no finished generation of this "
                    f"version ({error}); remove the line, or move the file away, to make it anew"
                ) from error
            key = Key(read.example_id, read.sample_idx)
            if key not in finished:
                self._earlier[Entry(key, read.pass_id, read.phase)] = read.generation

    def get(self, entry: Entry) -> Generation | None:
        """The generation that an earlier attempt finished, if any."""
        return self._earlier.get(entry)

    def earlier(self) -> Iterable[Generation]:
        """All that earlier attempts left."""
        return self._earlier.values()

    def put(self, entry: Entry, generation: Generation) -> None:
        """Append one generation. Thread-safe.

        From here on it survives the death of this process; `synced` makes it survive the machine's.
        """
        self._open_file().append(_encoded(entry, generation))

    def reopen_if_removed(self) -> bool:
        """Begin a new file where the own one was removed, since its rows are finished."""
        return self._open_file().reopen_if_removed()

    async def synced(self) -> None:
        """Return once everything put so far is on disk."""
        await self._open_file().synced()

    def _open_file(self) -> AppendFile:
        assert self._file is not None, "the journal is used before it is opened"
        return self._file

    def close(self, everything_finished: bool) -> None:
        """Close; remove the file when no trace is left unfinished, or it holds nothing."""
        if self._file is not None:
            self._file.close()
        if self.path.exists() and (everything_finished or self.path.stat().st_size == 0):
            self.path.unlink()


def open_journal(
    folder: Path, finished: set[Key], writer: str, shared: bool = False, fence: Fence | None = None
) -> Journal:
    """Open the journal of one writer of a run folder. `finished` rows need no generation."""
    journal = Journal(folder / f"journal-{writer}.jsonl", fence)
    journal.open(finished, shared)
    return journal


def _encoded(entry: Entry, generation: Generation) -> bytes:
    record = {name: getattr(generation, name) for name in FIELDS} | {"prompt_ids": None}
    names = {"pass": entry.pass_id, "phase": entry.phase}
    return encode(entry.key._asdict() | names | {"generation": record})
