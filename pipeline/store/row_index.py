"""Which line of several files of rows counts for each key, and where it lies."""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from pipeline.store.files import Line, Row, StoreError
from pipeline.store.pass_names import PASS_NAMES
from pipeline.store.row_heads import Key, key_of, num_tokens, read_heads, whole_number


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
        self.last_attempt = max(self.last_attempt, whole_number(head.get("attempt")))
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
    """What rows say that an attempt made: rows, and the tokens of the passes that it added."""

    num_rows: int
    num_tokens: int


def count_attempts(path: Path) -> dict[int, AttemptCount]:
    """Rows and tokens of each attempt, by the rows of `path` and of its parts that count.

    A row that replaces one of an earlier attempt repeats its passes, whose tokens that one made.
    """
    files = [file for file in (path, *parts_of(path)) if file.exists()]
    places, counts = index_rows(files).places, dict[int, AttemptCount]()
    replaced: dict[Key, dict[int, int]] = {}  # tokens of the lines of a key, by attempt
    for file in files:
        for line, head, _ in read_heads(file):
            if not head:
                continue
            attempt, made = whole_number(head.get("attempt")), num_tokens(head)
            earlier = replaced.setdefault(key_of(head), {})
            if places[key_of(head)] == Place(file, line):
                rows, tokens = counts.get(attempt, (0, 0))
                before = max((n for other, n in earlier.items() if other < attempt), default=0)
                counts[attempt] = AttemptCount(rows + 1, tokens + made - before)
            earlier[attempt] = max(made, earlier.get(attempt, 0))
    return counts
