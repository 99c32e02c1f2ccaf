"""Which passes of a file of rows have no entropies, and which pass 1 a later one was shown."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.analysis.row_files import parse
from pipeline.backfill.missing_passes import Selection, answers, has_pass1, id_of
from pipeline.protocols import Cue
from pipeline.spec import digest
from pipeline.store.files import Row
from pipeline.store.pass_names import FIRST, passes_with_output, repeats

Fields = dict[str, Any]


@dataclass(slots=True)
class UnscoredRows:
    """What a file holds.

    `offsets`: of the lines of rows that are to get entropies. `first_passes`: by example and
    output, the offset of a row whose pass 1 said this. `unnamed_cues`: rows with a later pass that
    says nothing of its cue and begins with none of those that were chosen; `skipped`: rows that
    lack entropies and have no pass 1, or only such later passes.
    """

    offsets: list[int] = field(default_factory=list)
    first_passes: dict[tuple[str, str], int] = field(default_factory=dict)
    rows: int = 0
    skipped: int = 0
    unnamed_cues: int = 0
    broken: int = 0


def find_unscored(path: Path, selection: Selection, cues: Sequence[Cue]) -> UnscoredRows:
    """Read the file once."""
    found = UnscoredRows()
    problems: set[str] = set()
    with path.open("rb") as file:
        offset = 0
        for line in file:
            row = parse(line)
            if row is not None:
                _note(found, row, offset, (selection, cues, problems))
            found.broken += row is None and bool(line.strip())
            offset += len(line)
    found.offsets = found.offsets[: selection.max_rows]
    return found


def _note(
    found: UnscoredRows,
    row: Row,
    offset: int,
    rules: tuple[Selection, Sequence[Cue], set[str]],
) -> None:
    selection, cues, problems = rules
    found.rows += 1
    if has_pass1(row):
        found.first_passes.setdefault(said(row, row[FIRST]["output"]), offset)
    if not selection.selects(row):
        return
    names = unscored(row, selection.force)
    known = [name for name in names if name == FIRST or cue_of(row[name], cues)]
    found.unnamed_cues += len(known) < len(names)
    problem = row.get("problem")
    if not names or (known and has_pass1(row) and isinstance(problem, str)):
        if names and _within(str(problem), problems, selection.max_problems):
            found.offsets.append(offset)
        return
    found.skipped += 1


def _within(problem: str, problems: set[str], most: int | None) -> bool:
    if problem not in problems and most is not None and len(problems) >= most:
        return False
    problems.add(problem)
    return True


def said(row: Row, output: str) -> tuple[str, str]:
    """What finds the pass 1 of a row's example that said something."""
    return id_of(row), digest(output)


def unscored(row: Row, force: bool = False) -> list[str]:
    """The passes of a row that lack entropies; with `force` all that a model generated."""
    passes = passes_with_output(row)
    return [
        name
        for name, fields in passes.items()
        if not repeats(name, passes)
        and (force or fields.get("entropy") is None)
        and fields.get("answer_status") != "failed"
        and str(fields.get("output") or "").strip()
    ]


def cue_of(fields: Fields, cues: Sequence[Cue]) -> Cue | None:
    """The cue of a later pass: its own, else that of `cues` with which its output begins."""
    text = fields.get("cue_text")
    if isinstance(text, str):
        return Cue(str(fields.get("cue") or "cue"), text, bool(fields.get("control")))
    return next((cue for cue in cues if answers(fields, cue)), None)
