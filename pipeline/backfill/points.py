"""Later passes for rows that lack them: each group of rows is run as a point of its own.

The point's folder lies beside the output until everything is merged, so that an interrupted
backfill goes on where it stopped; passes are made by the same traces as those of a run.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.analysis.row_files import parse
from pipeline.backfill.missing_passes import Gap, Scan, answers, apart, id_of, sample_of
from pipeline.backfill.stored_rows import example_of, generations
from pipeline.protocols import Cue, Example
from pipeline.run.pass_fields import cue_hash
from pipeline.run.point import Point
from pipeline.run.trace import Passed
from pipeline.spec import SpecError
from pipeline.store.files import Row, encode, read_lines, write_atomically
from pipeline.store.pass_names import (
    LETTERED,
    SECOND,
    free_names,
    is_later,
    later_passes,
    name_passes,
)
from pipeline.store.rows import Key

ARRAYS = ("entropies", "logprobs", "token_ends")
Row1 = dict[str, Any]
RowAt = Callable[[int], Row]


@dataclass(slots=True)
class BackfillPoint(Point):
    """A point made of rows: only these (example, sample) are traced, from their stored pass 1."""

    at: Path = Path()
    traces: list[tuple[Example, int]] = field(default_factory=list)
    offsets: dict[Key, int] = field(default_factory=dict)  # of the pass 1 to show, if not its own
    read: RowAt | None = None

    @property
    def folder(self) -> Path:
        """The working folder."""
        return self.at

    def keys(self) -> Iterator[tuple[Example, int]]:
        """The traces, in the order of the file."""
        return iter(self.traces)

    def canonical_order(self) -> list[Key]:
        """The same as keys."""
        return [Key(example.id, sample) for example, sample in self.traces]

    def given_pass1(self, example: Example, sample: int) -> Passed | None:
        """The pass 1 that this sample reconsiders; None for its own."""
        offset = self.offsets.get(Key(example.id, sample))
        if offset is None or self.read is None:
            return None
        return generations(self.read(offset)["pass1"], self.phases)


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


def chosen(scan: Scan, gap: Gap, preferred: int) -> int:
    """Where the pass 1 to show lies: the preferred sample of the group, else the lowest."""
    samples = scan.shown[gap.group]
    return samples[preferred] if preferred in samples else samples[min(samples)]


def seed_rows(point: BackfillPoint, rows: Iterable[Row], force: bool) -> None:
    """Write the rows that the traces start from, but those that an earlier attempt left."""
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


def _stored(point: BackfillPoint) -> Iterator[Row]:
    return (row for _, row in read_lines(point.rows_path) if row is not None)


def _seed(row: Row, key: Key, point: BackfillPoint, force: bool) -> Row:
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


@dataclass(slots=True)
class Made:
    """Finished rows of the points, by what tells rows apart in the file."""

    passes: dict[tuple[Any, ...], tuple[Path, int]] = field(default_factory=dict)
    cues: tuple[Cue, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)
    force: bool = False

    def of(self, row: Row) -> Row | None:
        """The finished row that belongs to a line of the file."""
        place = self.passes.get((apart(row), id_of(row), sample_of(row)))
        return reader(place[0])(place[1]) if place else None


def finished(points: Sequence[BackfillPoint], groups: Sequence[tuple[Any, ...]]) -> Made:
    """What the points have made so far; `groups[i]` tells the rows of `points[i]` apart."""
    made = Made()
    for point, group in zip(points, groups, strict=True):
        made.cues = point.cues
        for line, row in read_lines(point.rows_path):
            if row is not None and "task" in row and point.is_complete(row):
                key = (group, row["example_id"], row["sample_idx"])
                made.passes[key] = (point.rows_path, line.offset)
    return made


def merged(row: Row, made: Row, result: Made) -> Row:
    """A row with its new passes after `pass1`; everything else stays as it is."""
    new = _new_passes(row, made, result)
    out: Row = {}
    for name, value in row.items():
        if name in new:
            continue
        if not (is_later(name) and _ours(row) and isinstance(value, dict | None)):
            out[name] = value
        if name == "pass1":
            out |= new
    return out


def _ours(row: Row) -> bool:
    """Whether every later pass says by which cue it was made, so that names may be given anew."""
    return all(fields.get("cue_hash") is not None for fields in later_passes(row))


def _new_passes(row: Row, made: Row, result: Made) -> Row:
    """The passes that a row gets, by name."""
    passes = {n: f for n, f in made.items() if is_later(n) and isinstance(f, dict)}
    named = {n: f for n, f in passes.items() if n != SECOND} or passes
    asked = {cue_hash(cue) for cue in result.cues}
    fresh = {
        name
        for name, fields in named.items()
        if fields["cue_hash"] in asked and (result.force or not _there(fields, row))
    }
    mark = {"backfilled": result.provenance}
    marked = {n: f | mark if n in fresh else f for n, f in named.items()}
    if _ours(row):
        return name_passes(list(marked.values()))
    new = [marked[name] for name in named if name in fresh]
    if result.force:
        return name_passes(new)
    if row.get(SECOND):
        return dict(zip(free_names(row), new, strict=False))
    return {name: fields for name, fields in name_passes(new).items() if not row.get(name)}


def _there(fields: Row1, row: Row) -> bool:
    cue = Cue(fields.get("cue") or "", fields.get("cue_text") or "", bool(fields.get("control")))
    return any(answers(old, cue) for old in later_passes(row))


def write_merged(source: Path, output: Path, result: Made) -> int:
    """Write `source` with the new passes to `output`; returns the rows that got some.

    Undecodable lines go to `<output>.broken`, in order.
    """
    broken: list[bytes] = []
    changed = 0

    def lines() -> Iterator[bytes]:
        nonlocal changed
        with source.open("rb") as file:
            for line in file:
                row = parse(line)
                if row is None:
                    broken.extend([line.rstrip(b"\n") + b"\n"] if line.strip() else [])
                    continue
                made = result.of(row)
                changed += made is not None
                yield _encoded(merged(row, made, result)) if made else line.rstrip(b"\n") + b"\n"

    write_atomically(output, lines())
    if broken:
        write_atomically(output.with_name(f"{output.name}.broken"), broken)
    return changed


def _encoded(row: Row) -> bytes:
    """One line; NaN, which rows of the original may hold, stays."""
    text = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass") + b"\n"
