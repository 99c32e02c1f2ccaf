"""Finished rows in other formats: `python launch/export_rows.py outputs/demo to=csv out=rows.csv`.

`to` is parquet, csv, jsonl, hf (a folder for `datasets.load_from_disk`) or hub, which pushes to the
data set `out=owner/name`: private unless private=false says so; dry=true asks no network and tells
what would be pushed. `schema` is `rows`
(every column, passes as pass1.entropy and so on; arrays=false leaves lists of numbers out), or what
the fine-tuner's inferencer wrote: `inferencer` as its code does (system_prompt, user_prompt,
assistant_response, ground_truth), `inferencer_documented` as its documentation says (question,
predicted_answer, ground_truth, metadata). `pass` chooses the pass of these two, pass1 by default.
`means` writes the table `passes` of launch/summarize.py, one line a pass of each group of rows with
standard errors; by=subject,level groups rows by columns of the data as well.
`config_dir` is a folder of configuration whose tasks are trusted as those of conf/ are.

Texts in a CSV file are exactly those of the rows, but for halves of surrogate pairs, which become
U+FFFD outside of JSON lines. Spreadsheets run a text that begins like a
formula; formulas=escape puts an apostrophe before such a text.
"""

from launch.config.interrupts import guard

if __name__ == "__main__":
    guard()  # before libraries load

import argparse
import csv
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from launch.config.command_line import ended
from launch.reporting.formulas import escaped, like_a_formula
from launch.reporting.plain import plain
from launch.rows.hub_push import push
from launch.rows.inferencer_schemas import documented, written
from launch.rows.row_messages import RowMessages
from pipeline.analysis.flat import Kind, batches, column_kinds, fitted, flat, in_utf8
from pipeline.analysis.row_files import find, refuse_own_input
from pipeline.analysis.table import Table, load
from pipeline.spec import SpecError
from pipeline.store.files import Row, encode, write_atomically

SETTINGS = {
    **{"to": "parquet", "out": "", "schema": "rows", "pass": "pass1", "arrays": "true"},
    **{"by": "", "formulas": "keep", "config_dir": "", "private": "true", "dry": "false"},
}
ROWS_AT_ONCE = 500
Rows = Callable[[], Iterator[Row]]


def main(line: Sequence[str] | None = None) -> int:
    """Write one file or folder; status 2 with one sentence when something is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "given", nargs="+", help=f"runs or row files, and {', '.join(SETTINGS)}, each as NAME=VALUE"
    )
    roots, settings = split(parser.parse_args(line).given)
    return ended(lambda: export(roots, settings))


def split(given: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Paths, and settings with their defaults. A path that holds = is one if it exists."""
    settings, roots = dict(SETTINGS), []
    for item in given:
        name, equals, value = item.partition("=")
        if equals and name in SETTINGS and not Path(item).exists():
            settings[name] = value
        else:
            roots.append(item)
    return roots, settings


def export(roots: Sequence[str], settings: dict[str, str]) -> None:
    """Write what the settings say, and tell the number of rows."""
    check(settings)
    found = find(roots)
    refuse_own_input(settings["out"], found, "out")
    table = load(found, by=settings["by"].split(",") if settings["by"] else ()).with_rows()
    names = sorted(table.passes["pass"].astype(str).unique())
    if settings["pass"] not in names:
        raise SpecError(f"pass must be one of {', '.join(names)}, got {settings['pass']!r}")
    if settings["schema"] == "means":
        lines = means(table)

        def rows() -> Iterator[Row]:
            yield from lines
    else:
        make = SCHEMAS[settings["schema"]](table, settings)

        def rows() -> Iterator[Row]:
            for index, stored in table.stream():
                yield from make(index, stored)

    out = Path(settings["out"])
    if settings["to"] == "hub":
        print(_pushed(rows, settings))
        return
    if settings["to"] == "csv":
        count = to_csv(rows, out, settings["formulas"] == "escape")
    else:
        count = WRITERS[settings["to"]](rows, out)
    print(f"{count} rows in {settings['out']}")


def _pushed(rows: Rows, settings: dict[str, str]) -> str:
    """Push the rows as a Parquet file; a sentence about it."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "rows.parquet"
        count = to_parquet(rows, file)
        private, dry = settings["private"] == "true", settings["dry"] == "true"
        return push(file, count, settings["out"], private=private, dry=dry)


def check(settings: dict[str, str]) -> None:
    """Refuse values that there are not."""
    choices = {"to": [*WRITERS, "hub"], "schema": [*SCHEMAS, "means"], "arrays": ["true", "false"]}
    choices |= {"formulas": ["keep", "escape"], "private": ["true", "false"]}
    choices["dry"] = ["true", "false"]
    for name, allowed in choices.items():
        if settings[name] not in allowed:
            raise SpecError(f"{name} must be one of {', '.join(allowed)}, got {settings[name]!r}")
    if settings["by"] and settings["schema"] != "means":
        raise SpecError(f"by groups the rows of schema=means, got schema={settings['schema']}")
    if not settings["out"]:
        raise SpecError("out must name the file (for to=hf the folder) to write, got nothing")


def means(table: Table) -> list[Row]:
    """Means of every pass with their errors. SpecError without the libraries for statistics."""
    try:
        from pipeline.analysis.estimates import passes
    except ModuleNotFoundError as error:
        raise SpecError(
            f"schema=means needs the package {error.name}, which is not installed: "
            "pip install 'rethink-pipeline[stats]'"
        ) from error
    return list(plain(passes(table)))


Make = Callable[[Any, Row], Iterable[Row]]


def as_written(table: Table, settings: dict[str, str]) -> Make:
    """The keys that the inferencer's code writes."""
    messages = RowMessages(table, settings["config_dir"])

    def make(index: Any, row: Row) -> Iterable[Row]:
        if row.get(settings["pass"]):
            yield written(row, settings["pass"], *messages.of(index, row))

    return make


def as_documented(table: Table, settings: dict[str, str]) -> Make:
    """The keys that the inferencer's documentation promises."""

    def make(index: Any, row: Row) -> Iterable[Row]:
        if row.get(settings["pass"]):
            yield documented(row, settings["pass"])

    return make


def whole_rows(table: Table, settings: dict[str, str]) -> Make:
    """Every column; the run's name in front."""
    arrays = settings["arrays"] == "true"
    runs = table.rows["run"].astype(str)

    def make(index: Any, row: Row) -> Iterable[Row]:
        columns = {"run": runs[index]} | flat(row)
        yield columns if arrays else {k: v for k, v in columns.items() if not _is_numbers(v)}

    return make


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, int | float) for item in value)


def to_jsonl(rows: Rows, out: Path) -> int:
    """One object a line."""
    count = 0

    def lines() -> Iterator[bytes]:
        nonlocal count
        for row in rows():
            count += 1
            yield encode(row)

    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, lines())
    return count


def to_csv(rows: Rows, out: Path, escape: bool = False) -> int:
    """Lists and objects as JSON. `escape`: an apostrophe stands before what looks like a formula.

    Else the texts stay as they are, and a line says how many look so.
    """
    names = list(column_kinds(map(in_utf8, rows())))
    out.parent.mkdir(parents=True, exist_ok=True)
    count = formulas = 0
    with out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        for count, row in enumerate(map(in_utf8, rows()), start=1):  # noqa: B007
            cells = {name: _cell(value) for name, value in row.items()}
            risky = [name for name, cell in cells.items() if like_a_formula(cell)]
            formulas += len(risky)
            writer.writerow(cells | {name: escaped(cells[name]) for name in risky if escape})
    if formulas and not escape:
        print(
            f"{formulas} cells of {out} begin like a formula, which a spreadsheet would run; "
            "formulas=escape puts an apostrophe before each"
        )
    return count


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def to_parquet(rows: Rows, out: Path) -> int:
    """Columns typed over all rows; what has no one type is JSON."""
    import pyarrow as pa
    from pyarrow import parquet

    kinds = column_kinds(map(in_utf8, rows()))
    schema = pa.schema([(name, _arrow(kind)) for name, kind in kinds.items()])
    out.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with parquet.ParquetWriter(out, schema, compression="zstd") as writer:
        for batch in batches(map(in_utf8, rows()), ROWS_AT_ONCE):
            fit = [fitted(row, kinds) for row in batch]
            writer.write_table(pa.Table.from_pylist(fit, schema=schema))
            count += len(batch)
    return count


def _arrow(kind: Kind) -> Any:
    import pyarrow as pa

    plain = {"bool": pa.bool_(), "int": pa.int64(), "float": pa.float64()}
    if kind.startswith("list"):
        return pa.list_(plain.get(kind.removeprefix("list").strip(), pa.string()))
    return plain.get(kind, pa.string())


def to_hf(rows: Rows, out: Path) -> int:
    """A folder that `datasets.load_from_disk` reads."""
    from datasets import Dataset

    if out.exists():
        raise SpecError(f"out must name a folder that does not exist yet, got {str(out)!r}")
    with tempfile.TemporaryDirectory() as scratch:
        parquet = Path(scratch) / "rows.parquet"
        count = to_parquet(rows, parquet)
        Dataset.from_parquet(str(parquet), cache_dir=scratch).save_to_disk(str(out))
    return count


WRITERS: dict[str, Callable[[Rows, Path], int]] = {
    "parquet": to_parquet,
    "csv": to_csv,
    "jsonl": to_jsonl,
    "hf": to_hf,
}
SCHEMAS = {
    "rows": whole_rows,
    "inferencer": as_written,
    "inferencer_documented": as_documented,
}

if __name__ == "__main__":
    sys.exit(main())
