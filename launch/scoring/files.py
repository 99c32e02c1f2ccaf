"""The files of scores: a summary as JSON, and every row as JSON lines and as a spreadsheet."""

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from launch.reporting.formulas import escaped
from launch.scoring.scores import Scores
from pipeline.spec import require
from pipeline.store.files import encode, write_atomically

SUMMARY = "evaluator_output_summary.json"
SHEET = "evaluator_output_detailed.xlsx"
LINES = "evaluator_output_detailed.jsonl"
LONGEST_CELL = 32_767  # characters that a cell may hold
ROWS_OF_A_SHEET = 1_048_576  # its heading among them


def refuse_own_input(paths: Sequence[str], out: Path) -> None:
    """Refuse to replace a file that is read, whose judgements would be lost. Raises SpecError."""
    written = {(out / name).resolve() for name in (SUMMARY, SHEET, LINES)}
    read = next((path for path in paths if Path(path).resolve() in written), None)
    rule = f"name another folder than that of {read}, which is read and would be replaced"
    require(read is None, "--out", rule, str(out))


def write(scores: Scores, judged: dict[str, list[Any]], summary: dict[str, Any], out: Path) -> None:
    """Write all three; `judged` are further columns."""
    out.mkdir(parents=True, exist_ok=True)
    lines = list(_lines(scores, judged))
    write_atomically(out / LINES, map(encode, lines))
    cut = _write_sheet(lines, out / SHEET)
    if cut:
        scores.notes.append(
            f"{cut} cells of {SHEET} are longer than a spreadsheet takes and were cut; "
            f"{LINES} has all of them"
        )
    text = json.dumps(summary | {"notes": scores.notes}, ensure_ascii=False, indent=2)
    write_atomically(out / SUMMARY, [f"{text}\n".encode()])


def _lines(scores: Scores, judged: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Every row with its scores."""
    for number, row in enumerate(scores.rows):
        single = len(row.references) == 1
        yield {
            "run": row.run,
            "example_id": row.example,
            "sample_idx": row.sample,
            "question": row.question,
            "response": row.response,
            "reference": row.references[0] if single else list(row.references) or None,
            **{name: column[number] for name, column in (scores.metrics | scores.parts).items()},
            **{name: column[number] for name, column in judged.items()},
        }


def _write_sheet(lines: Sequence[dict[str, Any]], path: Path) -> int:
    """Write rows into as many sheets as they need; the number of cells that were cut."""
    from openpyxl import Workbook

    book = Workbook(write_only=True)
    names, cut = list(lines[0]), 0
    waiting = iter(lines)
    while part := list(islice(waiting, ROWS_OF_A_SHEET - 1)):
        sheet = book.create_sheet()
        sheet.append(names)
        for line in part:
            cells = [_cell(line[name]) for name in names]
            cut += sum(isinstance(cell, str) and len(cell) > LONGEST_CELL for cell in cells)
            sheet.append([c[:LONGEST_CELL] if isinstance(c, str) else c for c in cells])
    scratch = path.with_suffix(".tmp")
    book.save(scratch)
    scratch.replace(path)
    return cut


def _cell(value: Any) -> Any:
    """A value as a cell may hold it: lists as JSON, nothing that is run, no control characters."""
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

    plain = json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
    if not isinstance(plain, str):
        return plain
    return ILLEGAL_CHARACTERS_RE.sub("\ufffd", str(escaped(plain)))
