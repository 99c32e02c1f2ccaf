"""Puts the numbers and samples of runs into the one file of the report."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from launch.reporting import charts, html_file
from launch.reporting.provenance import facts, provenance
from launch.reporting.rows import pack
from launch.reporting.runs import PromptPieces, configs, difference
from launch.reporting.swept import by_swept_keys
from launch.rows.stored_task import StoredTasks
from pipeline.analysis.row_files import find
from pipeline.analysis.table import Table, load
from pipeline.spec import require

TITLE = "Rethink report"
CHUNK = 64  # rows per piece of the page's data
SHOWN_ROWS = 5000
MADE = {"points": charts.points, "histograms": charts.histograms, "flips": charts.flips}


@dataclass(slots=True)
class Side:
    """One of the compared runs: all its numbers, and those of its rows that can be looked at."""

    number: int
    name: str
    roots: list[str]
    table: Table
    shown: Table

    @property
    def folders(self) -> list[Path]:
        """Folders of row files."""
        return list(dict.fromkeys(file.path.parent for file in self.table.files))


def read(number: int, roots: Sequence[str], limit: int, by: Sequence[str] = ()) -> Side:
    """Read a run. Of more than `limit` rows, the samples of some examples are kept to look at.

    Which examples does not depend on the run, so that two runs can be compared.
    """
    table = by_swept_keys(load(find(roots), by=by).with_rows())
    order = table.rows.sort_values(["example", "sample", "step", "temperature"], kind="stable")
    wanted = table.rows.index.isin(order.index[:limit])
    shown = table.keep(pd.Series(wanted, table.rows.index))
    return Side(number, ", ".join(Path(root).name for root in roots), list(roots), table, shown)


class Pieces:
    """The data of a report: an index that is always loaded, the rest loaded when needed."""

    def __init__(self, sides: Sequence[Side], tasks: StoredTasks) -> None:
        self.sides = sides
        self.prompts = PromptPieces(tasks)
        self.lines: list[dict[str, Any]] = []

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        """Names and contents; the index comes last, when all rows have been seen."""
        texts: list[Any] = []
        tokens: list[Any] = []
        for line, text, series in self._packed():
            self.lines.append(line)
            texts.append(text)
            tokens.append(series)
            if len(texts) == CHUNK:
                yield from self._flush(texts, tokens)
        if texts:
            yield from self._flush(texts, tokens)
        yield "prompts", html_file.piece(self.prompts.piece())
        yield "index", html_file.piece(self._index())

    def _packed(self) -> Iterator[tuple[dict[str, Any], dict[str, Any], list[Any]]]:
        for side in self.sides:
            by = list(side.table.by)
            places = side.shown.rows[["task", "step", "temperature", *by]].astype(object)
            places = places.where(places.notna(), None)
            for index, row in side.shown.stream():
                packed = pack(row)
                folder = side.table.files[int(side.shown.rows.at[index, "file"])].path.parent
                place = places.loc[index].to_dict()
                more: dict[str, Any] = {
                    **{"run": side.number, "prompt": self.prompts.number(folder, row)}
                }
                if by:
                    more["groups"] = {name: place.pop(name) for name in by}
                yield packed.line | place | more, packed.texts, packed.tokens

    def _flush(self, texts: list[Any], tokens: list[Any]) -> Iterator[tuple[str, bytes]]:
        number = (len(self.lines) - 1) // CHUNK
        yield f"texts-{number}", html_file.piece(texts)
        yield f"tokens-{number}", html_file.piece(tokens)
        texts.clear()
        tokens.clear()

    def _index(self) -> dict[str, Any]:
        named = [(side.name, charts.labelled(side.table)) for side in self.sides]
        found: dict[str, list[Any]] = {"points": [], "histograms": [], "flips": []}
        for number, (_, table) in enumerate(named):
            for name, make in MADE.items():
                found[name] += [line | {"run": number} for line in make(table)]
        own = [configs(side.folders) for side in self.sides]
        labels = dict.fromkeys(label for _, table in named for label in charts.labels(table))
        return {
            "runs": [_about(side) for side in self.sides],
            "passes": list(labels),
            "chunk": CHUNK,
            "by": list(dict.fromkeys(name for side in self.sides for name in side.table.by)),
            "rows": self.lines,
            "charts": found,
            "tables": list(charts.tables(named)),
            "configs": difference(own[0], own[-1]),
            "notes": self._notes(),
            "licences": html_file.licences(),
        }

    def _notes(self) -> list[str]:
        notes = []
        for side in self.sides:
            shown, rows = len(side.shown.rows), len(side.table.rows)
            if shown < rows:
                which = f"{shown} of {rows} rows, all samples of some examples (see --rows)"
                notes.append(f"{side.name}: the samples tab holds {which}; numbers use every row.")
            if side.table.broken:
                notes.append(
                    f"{side.name}: {side.table.broken} lines are no rows and were left out."
                )
            if side.table.superseded:
                notes.append(
                    f"{side.name}: {side.table.superseded} lines were replaced by later ones."
                )
        refused = self.prompts.refused.items()
        return notes + [f"{folder}: no prompts are shown: {why}" for folder, why in refused]


def _about(side: Side) -> dict[str, Any]:
    counts = {"rows": len(side.table.rows), "shown": len(side.shown.rows)}
    parents = side.table.rows["file"].map(lambda file: side.table.files[file].path.parent)
    in_folder = parents.value_counts()
    found = [facts(folder, int(in_folder.get(folder, 0))) for folder in side.folders]
    return {"name": side.name, "roots": side.roots, "provenance": provenance(found)} | counts


def write_report(
    output: Path,
    runs: Sequence[str],
    compare: Sequence[str] = (),
    rows: int = SHOWN_ROWS,
    title: str = TITLE,
    tasks: StoredTasks | None = None,
    by: Sequence[str] = (),
) -> int:
    """Write the report of some run folders, beside that of others to compare; returns its bytes.

    `tasks` makes the tasks that rows name, to show their prompts: those of conf/ unless given.
    `by` names columns of the data that tables and filters group by as well.

    Raises:
        SpecError: a folder without rows, or a library that is missing.
    """
    require(rows >= 0, "--rows", "be 0 or more", rows)
    groups = [runs, compare] if compare else [runs]
    sides = [read(number, roots, rows, by) for number, roots in enumerate(groups)]
    return html_file.write(output, title, Pieces(sides, tasks or StoredTasks()))
