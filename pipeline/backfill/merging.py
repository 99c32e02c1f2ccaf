"""New passes put into the rows of a file; everything else in it stays as it is."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.analysis.row_files import parse
from pipeline.backfill.missing_passes import answers, id_of, run_settings, sample_of
from pipeline.backfill.points import BackfillPoint, reader
from pipeline.protocols import Cue
from pipeline.run.pass_fields import cue_hash
from pipeline.store.files import Fence, Row, read_lines, write_atomically
from pipeline.store.pass_names import SECOND, free_names, is_later, later_passes, name_passes
from pipeline.store.row_heads import Key


@dataclass(slots=True)
class FinishedPasses:
    """Finished rows of the points, by what tells rows apart in the file.

    `provenance` is what a new pass says of the settings that made it; `force` replaces passes.
    """

    places: dict[tuple[Any, ...], tuple[Path, int]] = field(default_factory=dict)
    own_provenance: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)
    cues: tuple[Cue, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)
    force: bool = False

    @classmethod
    def of_points(cls, points: Sequence[BackfillPoint]) -> "FinishedPasses":
        """What the points have finished so far."""
        finished = cls()
        for made in points:
            point = made.point
            finished.cues = point.cues
            for line, row in read_lines(point.rows_path):
                if row is None or "task" not in row or not point.is_complete(row):
                    continue
                sample_key = Key(row["example_id"], row["sample_idx"])
                key = (made.run_settings, *sample_key)
                finished.places[key] = (point.rows_path, line.offset)
                told: dict[str, Any] = {"fingerprint": point.fingerprint}
                if (place := made.pass1_places.get(sample_key)) is not None:
                    told["pass1_sample"] = place[0]
                finished.own_provenance[key] = told
        return finished

    def of(self, row: Row) -> Row | None:
        """The finished row that belongs to a line of the file."""
        place = self.places.get(_key(row))
        return reader(place[0])(place[1]) if place else None

    def mark(self, row: Row) -> dict[str, Any]:
        """What the new passes of a row say of how they were made."""
        return {"backfilled": self.provenance | self.own_provenance[_key(row)]}


def _key(row: Row) -> tuple[Any, ...]:
    return run_settings(row), id_of(row), sample_of(row)


def merged(row: Row, made: Row, result: FinishedPasses) -> Row:
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


def _new_passes(row: Row, made: Row, result: FinishedPasses) -> Row:
    """The passes that a row gets, by name."""
    passes = {n: f for n, f in made.items() if is_later(n) and isinstance(f, dict)}
    named = {n: f for n, f in passes.items() if n != SECOND} or passes
    asked = {cue_hash(cue) for cue in result.cues}
    fresh = {
        name
        for name, fields in named.items()
        if fields["cue_hash"] in asked and (result.force or not _there(fields, row))
    }
    mark = result.mark(row)
    marked = {n: f | mark if n in fresh else f for n, f in named.items()}
    if _ours(row):
        return name_passes(list(marked.values()))
    new = [marked[name] for name in named if name in fresh]
    if result.force:
        return name_passes(new)
    if row.get(SECOND):
        return dict(zip(free_names(row), new, strict=False))
    return {name: fields for name, fields in name_passes(new).items() if not row.get(name)}


def _there(fields: dict[str, Any], row: Row) -> bool:
    cue = Cue(fields.get("cue") or "", fields.get("cue_text") or "", bool(fields.get("control")))
    return any(answers(old, cue) for old in later_passes(row))


def write_merged(
    source: Path, output: Path, result: FinishedPasses, fence: Fence | None = None
) -> int:
    """Write `source` with the new passes to `output`; returns the rows that got some."""

    def changed(offset: int, row: Row) -> Row | None:
        made = result.of(row)
        return merged(row, made, result) if made else None

    return write_changed(source, output, changed, fence)


def write_changed(
    source: Path,
    output: Path,
    change: Callable[[int, Row], Row | None],
    fence: Fence | None = None,
) -> int:
    """Write the lines of `source` to `output`, some of them changed; returns how many these are.

    `change` is given where a line begins and its row; None leaves the line as it is. Undecodable
    lines go to `<output>.broken`, in order.

    Raises:
        StoreError: it cannot be written, or the `fence` says that another process has the folder.
    """
    broken: list[bytes] = []
    changed = 0

    def lines() -> Iterator[bytes]:
        nonlocal changed
        offset = 0
        with source.open("rb") as file:
            for line in file:
                row, at = parse(line), offset
                offset += len(line)
                if row is None:
                    broken.extend([line.rstrip(b"\n") + b"\n"] if line.strip() else [])
                    continue
                new = change(at, row)
                changed += new is not None
                yield _encoded(new) if new is not None else line.rstrip(b"\n") + b"\n"

    write_atomically(output, lines(), fence)
    if broken:
        write_atomically(output.with_name(f"{output.name}.broken"), broken, fence)
    return changed


def _encoded(row: Row) -> bytes:
    """One line; NaN, which rows of the original may hold, stays."""
    text = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass") + b"\n"
