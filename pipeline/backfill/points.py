"""Later passes for rows that lack them: each group of rows is run as a point of its own.

The point's folder lies beside the output until everything is merged, so that an interrupted
backfill goes on where it stopped; passes are made by the same traces as those of a run.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.analysis.row_files import parse
from pipeline.backfill.missing_passes import RowToFill, Scan, answers, id_of, sample_of
from pipeline.backfill.stored_rows import example_of, generations
from pipeline.protocols import Cue, Example, Phase
from pipeline.run.pass_fields import cue_hash
from pipeline.run.point import Point
from pipeline.run.trace import Passed
from pipeline.spec import SpecError
from pipeline.store.files import Row, encode, read_lines, write_atomically
from pipeline.store.pass_names import (
    LETTERED,
    later_passes,
)
from pipeline.store.row_heads import Key

ARRAYS = ("entropies", "logprobs", "token_ends")
Row1 = dict[str, Any]
RowAt = Callable[[int], Row]


@dataclass(frozen=True, slots=True)
class BackfillPoint:
    """A point made of rows, of which only these are traced, from their stored pass 1."""

    point: Point
    run_settings: tuple[Any, ...]  # of the run that made the rows
    # The sample whose pass 1 is reconsidered, where not the own one, and the offset of its line.
    pass1_places: Mapping[Key, tuple[int, int]] = field(default_factory=dict)


def pass1_giver(
    places: Mapping[Key, tuple[int, int]], phases: Sequence[Phase], read: RowAt
) -> Callable[[Example, int], Passed | None]:
    """What a point asks for the pass 1 that a sample reconsiders; None for its own."""

    def given(example: Example, sample: int) -> Passed | None:
        place = places.get(Key(example.id, sample))
        return None if place is None else generations(read(place[1])["pass1"], phases)

    return given


def reader(path: Path) -> RowAt:
    """Reads the row of a file that begins at an offset."""

    def read(offset: int) -> Row:
        with path.open("rb") as file:
            file.seek(offset)
            row = parse(file.readline())
        if row is None:
            raise SpecError(f"{path} has changed since it was scanned; start the backfill again")
        return row

    return read


def pass1_place(scanned: Scan, row_to_fill: RowToFill, preferred: int) -> tuple[int, int]:
    """The sample whose pass 1 is reconsidered, and the offset of its line.

    It is the preferred sample of the row's group, else the lowest that has a pass 1.
    """
    places = scanned.pass1_places[row_to_fill.group]
    sample = preferred if preferred in places else min(places)
    return sample, places[sample]


def seed_rows(point: Point, rows: Iterable[Row], force: bool) -> None:
    """Write the starting rows (pass 1 and the passes to keep), except those already written."""
    there = {Key(row["example_id"], row["sample_idx"]) for row in _stored(point)}
    if there.issuperset(point.canonical_order()):
        return

    def lines() -> Iterator[bytes]:
        if point.rows_path.exists():
            yield point.rows_path.read_bytes()
        for key, row in zip(point.canonical_order(), rows, strict=True):
            if key not in there:
                yield encode(_seed(row, key, point, force))

    point.folder.mkdir(parents=True, exist_ok=True)
    write_atomically(point.rows_path, lines())


def _stored(point: Point) -> Iterator[Row]:
    return (row for _, row in read_lines(point.rows_path) if row is not None)


def _seed(row: Row, key: Key, point: Point, force: bool) -> Row:
    """A row with its pass 1 as a trace takes it, and the passes that are to stay."""
    by_cue: dict[str, Row1] = {}
    for fields in later_passes(row):
        named = _named(fields, point.cues)
        if named and not (force and named["cue_hash"] in map(cue_hash, point.cues)):
            by_cue.setdefault(named["cue_hash"], named)
    return {
        **key._asdict(),
        "pass1": normal(row["pass1"], point),
        **dict(zip(LETTERED, by_cue.values(), strict=False)),
    }


def _named(fields: Row1, cues: Sequence[Cue]) -> Row1 | None:
    """A stored pass with its cue's identity; None where nothing tells the cue."""
    if fields.get("cue_hash") is not None:
        return fields
    cue = next((cue for cue in cues if answers(fields, cue)), None)
    if cue is None:
        return None
    wanted = {"cue_hash": cue_hash(cue), "control": cue.control}
    return {"tokens_total": 0, "reconsider_markers": []} | fields | wanted


def normal(fields: Row1, point: Point) -> Row1:
    """A pass object with what `generations_of` wants, also where an old row lacks it."""
    slim = {name: value for name, value in fields.items() if name not in ARRAYS}
    if all(phase.name in fields.get("segments", ()) for phase in point.phases):
        return slim
    at, segments = 0, {}
    output = str(fields.get("output") or "")
    made = generations(fields, point.phases)
    for phase, generation in zip(point.phases, made, strict=True):
        at = output.find(generation.text, at)
        segments[phase.name] = [at, at + len(generation.text)]
        at += len(generation.text)
        slim[f"tokens_{phase.name}"] = 0
        slim[f"stop_reason_{phase.name}"] = generation.finish_reason
    tails = {p.name: g.tail for p, g in zip(point.phases, made, strict=True) if g.tail}
    return slim | {"segments": segments, "tails": tails, "token_ids": None, "tokens_total": 0}


def trace_of(row: Row) -> tuple[Example, int]:
    """The (example, sample) of a row. Gold that is neither text nor a list counts as unknown."""
    example = example_of(row)
    gold = example.target if isinstance(example.target, str | list) else None
    sample = sample_of(row)
    assert sample is not None
    return Example(id_of(row), example.question, gold, example.metadata), sample
