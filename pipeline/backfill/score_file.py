"""Scores on their way into rows: kept in a file of their own until all of them are there."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import Any, Self

from pipeline.analysis.row_files import read_at
from pipeline.backfill.pass_scores import Fields, ForcedPass, RowScoring, scored_fields
from pipeline.protocols import TokenScores
from pipeline.run.pass_fields import SeriesPolicy
from pipeline.spec import SpecError
from pipeline.store.files import AppendFile, Row, decode, encode, read_lines, repair

ROWS_AT_ONCE = 16
_REFUSED = (SpecError, FloatingPointError, MemoryError)


class ScoreFile:
    """Scored passes by where their row begins; a kill loses those of one batch.

    `refused` counts rows that could not be scored in this attempt, by the reason.
    """

    def __init__(self, path: Path) -> None:
        """Nothing is read or written until it is entered."""
        self.path = path
        self.refused: Counter[str] = Counter()
        self._places: dict[int, tuple[int, int]] = {}
        self._file: AppendFile | None = None

    def __enter__(self) -> Self:
        """Read what earlier attempts have left."""
        repair(self.path)
        for line, stored in read_lines(self.path):
            if stored is not None:
                self._places[stored["offset"]] = (line.offset, line.length)
        self._file = AppendFile(FileIO(self.path, "ab"))
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the file."""
        assert self._file is not None
        self._file.close()

    def __contains__(self, offset: int) -> bool:
        """Whether the row that begins at an offset is scored."""
        return offset in self._places

    def of(self, offset: int) -> dict[str, Fields] | None:
        """The scored passes of the row that begins there, by name."""
        if offset not in self._places:
            return None
        passes: dict[str, Fields] = self._read(*self._places[offset])["passes"]
        return passes

    def _read(self, offset: int, length: int) -> Row:
        row = decode(read_at(self.path, offset, length))
        assert row is not None, "written by put"
        return row

    def put(self, scored: Iterable[tuple[int, dict[str, Fields]]]) -> None:
        """Append rows, which are on disk when this returns."""
        assert self._file is not None
        for offset, passes in scored:
            line = encode({"offset": offset, "passes": passes})
            self._places[offset] = (self._file.append(line), len(line))
        self._file.flush()


async def score_rows(
    scoring: RowScoring,
    file: ScoreFile,
    rows: Iterable[tuple[int, Row]],
    keep: SeriesPolicy,
    stop: asyncio.Event,
) -> None:
    """Score rows, each with where it begins, and put them into the file; `stop` ends it early.

    A row that cannot be scored is counted with its reason, and the others are scored.
    """
    rows = iter(rows)
    while not stop.is_set() and (batch := list(islice(rows, ROWS_AT_ONCE))):
        ready = []
        for offset, row in batch:
            try:
                ready.append((offset, scoring.passes(row)))
            except SpecError as error:
                file.refused[str(error)] += 1
        try:
            done = await _scored(scoring, ready, keep)
        except _REFUSED:  # because of one of them
            done = []
            for one in ready:
                try:
                    done += await _scored(scoring, [one], keep)
                except _REFUSED as error:
                    file.refused[str(error)] += 1
        await asyncio.to_thread(file.put, done)


async def _scored(
    scoring: RowScoring, ready: Sequence[tuple[int, list[ForcedPass]]], keep: SeriesPolicy
) -> list[tuple[int, dict[str, Any]]]:
    forced = [each for _, passes in ready for one in passes for each in one.forced]
    scores = iter(await scoring.backend.score(forced))
    return [
        (offset, {one.name: _fields(one, scores, keep) for one in passes})
        for offset, passes in ready
    ]


def _fields(one: ForcedPass, scores: Iterable[TokenScores], keep: SeriesPolicy) -> Fields:
    return scored_fields(one, list(islice(scores, len(one.forced))), keep)
