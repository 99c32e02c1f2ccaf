"""The journal: every finished Generation of an unfinished trace, so none is made twice."""

import threading
from collections.abc import Iterable
from dataclasses import fields
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from pipeline.protocols import Generation
from pipeline.store.files import (
    Flush,
    StoreError,
    append,
    encode,
    read_lines,
    repair,
    write_atomically,
)
from pipeline.store.rows import Key

PASS1 = "pass1"
FIELDS = tuple(field.name for field in fields(Generation))


class Entry(NamedTuple):
    """Names one generation: its row, its pass (`pass1` or the cue's hash) and its phase."""

    key: Key
    pass_id: str
    phase: str


class Journal:
    """Appends generations to `journal-<writer>.jsonl`; hands out those earlier attempts left.

    Alone in the folder it takes over the files of earlier attempts; `shared` it reads them only.
    """

    def __init__(self, folder: Path, finished: set[Key], writer: str, shared: bool = False) -> None:
        """Read what earlier attempts left for rows that are not in `finished`."""
        self.path = folder / f"journal-{writer}.jsonl"
        self._mutex = threading.Lock()
        self._known: dict[Entry, Generation] = {}
        self._sizes: dict[Path, int] = {}
        if not shared:
            for path in folder.glob("journal-*.jsonl"):
                repair(path)
        self.learn(finished)
        if not shared and self._sizes:
            # Carried over first, deleted after: a kill between the two leaves doubles, never a gap.
            write_atomically(self.path, (_line(e, g) for e, g in self._known.items()))
            for path in self._sizes:
                path.unlink()
        self._file = FileIO(self.path, "ab")
        self._flush = Flush(self._file)

    def learn(self, finished: set[Key]) -> None:
        """Read what other writers left since the last look."""
        for path in sorted(self.path.parent.glob("journal-*.jsonl")):
            if path != self.path and path.stat().st_size != self._sizes.get(path):
                self._sizes[path] = path.stat().st_size
                self._read(path, finished)

    def _read(self, path: Path, finished: set[Key]) -> None:
        for line, item in read_lines(path):
            if item is None:
                continue
            try:
                entry = Entry(
                    Key(item["example_id"], item["sample_idx"]), item["pass"], item["phase"]
                )
                generation = Generation(**item["generation"])
            except (KeyError, TypeError) as error:
                raise StoreError(
                    f"{path}: the line at byte {line.offset} is no finished generation of this "
                    f"version ({error}); remove the line, or move the file away, to make it anew"
                ) from error
            if entry.key not in finished:
                self._known[entry] = generation

    def get(self, entry: Entry) -> Generation | None:
        """The generation that an earlier attempt finished, if any."""
        return self._known.get(entry)

    def known(self) -> Iterable[Generation]:
        """All that earlier attempts left."""
        return self._known.values()

    def put(self, entry: Entry, generation: Generation) -> None:
        """Append one generation.

        From here on it survives the death of this process; `synced` makes it survive the machine's.
        """
        data = _line(entry, generation)
        with self._mutex:
            append(self._file, data)
            self._flush.written += 1

    async def synced(self) -> None:
        """Return once everything put so far is on disk."""
        await self._flush.reached(self._flush.written)

    def close(self, everything_finished: bool) -> None:
        """Close; remove the file when no trace is left unfinished, or it holds nothing."""
        self._flush.close()
        if self.path.exists() and (everything_finished or self.path.stat().st_size == 0):
            self.path.unlink()


def _line(entry: Entry, generation: Generation) -> bytes:
    record = {name: getattr(generation, name) for name in FIELDS} | {"prompt_ids": None}
    names = {"pass": entry.pass_id, "phase": entry.phase}
    return encode(entry.key._asdict() | names | {"generation": record})
