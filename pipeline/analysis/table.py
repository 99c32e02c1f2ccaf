"""Rows of many runs as two pandas frames of numbers: one line per row, one line per pass."""

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
import pandas as pd

from pipeline.analysis.columns import Array, Chunk, Codes, Judge, Span, read_span
from pipeline.analysis.row_files import RowFile, parse, read_at
from pipeline.spec import SpecError
from pipeline.store.files import Row
from pipeline.store.pass_names import PASS_NAMES

SPAN_BYTES = 8 << 20  # small enough to stay in the cache of the processor
ALONE_BYTES = 96 << 20  # less than this is read faster than a second process starts
# What rows are told apart by before they are averaged.
POINT = ["run", "task", "model", "temperature", "step"]


@dataclass(slots=True)
class Table:
    """Current rows of all files: of several lines with one key in a folder, the one that counts.

    `rows`: run, task, model, temperature, step, seed, `grader` (JSON), the columns `by`, `example`
    and `problem` (hashes), sample (-1: none), and where the line lies: file (index into `files`),
    offset, length.
    `passes`: `row` (index into `rows`), pass, cue (the pass's name where the row names none),
    control, `second` (the pass 2 of the table by step), correct, improved, tags, marked,
    judged_shift, no_answer, truncated (1, 0 or NaN), tokens*, seconds, entropy*, soft, `answer` (a
    hash), stop_think, stop_answer; `recorded`, the verdict in the file, where `correct` is another
    one. A pass that repeats another is there once.
    """

    files: list[RowFile]
    rows: pd.DataFrame
    passes: pd.DataFrame
    broken: int = 0  # lines that are no JSON object
    superseded: int = 0
    by: tuple[str, ...] = ()  # columns of the data that rows are grouped by as well

    @property
    def point(self) -> list[str]:
        """The columns of `rows` that averages are taken within."""
        return [*POINT, *self.by]

    def with_rows(self) -> "Table":
        """This table. Raises SpecError where no line is a row with a pass."""
        if self.passes.empty:
            files = ", ".join(str(file.path) for file in self.files)
            broken = f" (lines that are no JSON object: {self.broken})" if self.broken else ""
            rule = "give files of a run's rows, or wait for the first one to be written"
            raise SpecError(f"no row with a pass in {files}{broken}; {rule}")
        return self

    def joined(
        self,
        columns: Sequence[str] | None = None,
        chosen: Any = None,
        by: Sequence[str] = (*POINT, "example", "problem", "sample"),
    ) -> pd.DataFrame:
        """`columns` of the passes beside columns `by` of their rows; all passes, or `chosen`.

        Only what is asked for is copied: of millions of rows nothing else fits.
        """
        passes = self.passes if chosen is None else self.passes[chosen]
        place = self.rows.index.get_indexer(passes["row"])
        owners = {name: self.rows[name].array.take(place) for name in by}
        names = list(passes) if columns is None else columns
        values = {name: passes[name].array for name in names}
        return pd.DataFrame(owners | values, copy=False)

    def row(self, index: Any) -> Row:
        """The whole row, arrays included, read from its file."""
        at = self.rows.loc[index]
        raw = read_at(self.files[int(at["file"])].path, int(at["offset"]), int(at["length"]))
        row = parse(raw)
        assert row is not None
        return row

    def stream(self) -> Iterator[tuple[Any, Row]]:
        """Every current row with its index, in the order of files and lines."""
        for number, part in self.rows.groupby("file", sort=True):
            with self.files[int(str(number))].path.open("rb") as file:
                for index, offset, length in zip(
                    part.index, part["offset"], part["length"], strict=True
                ):
                    file.seek(offset)
                    row = parse(file.read(length))
                    assert row is not None
                    yield index, row

    def with_verdicts(self, verdicts: Array) -> "Table":
        """This table with other verdicts (1, 0 or NaN by pass), and `improved` by them.

        The verdicts that rows hold become the column `recorded`.
        """
        passes = self.passes
        if "recorded" not in passes:
            passes = passes.assign(recorded=passes["correct"])
        passes = passes.assign(correct=verdicts)
        is_first = passes["pass"] == "pass1"
        before = passes[is_first].set_index("row")["correct"].reindex(passes["row"]).to_numpy()
        gained = (passes["correct"] > 0) & (before == 0)
        judged = passes["correct"].notna() & ~np.isnan(before) & ~is_first
        passes["improved"] = gained.astype(np.float32).where(judged)
        return replace(self, passes=passes)

    def keep(self, wanted: pd.Series) -> "Table":
        """The table of those rows for which `wanted` (indexed like `rows`) holds."""
        rows = self.rows[wanted]
        passes = self.passes[self.passes["row"].isin(rows.index)]
        return replace(self, rows=rows, passes=passes)


def load(
    files: Sequence[RowFile],
    judge: Judge | None = None,
    workers: int | None = None,
    by: Sequence[str] = (),
) -> Table:
    """Read files into a table, in several processes where there is much to read.

    `judge` replaces the verdict of every pass, given the pass and the canonical gold answer. A
    process with threads or a device asks for one worker: others are forked from it. `by` names
    columns of rows, or of their `metadata`, that rows are grouped by beside run, step and so on.

    Raises:
        SpecError: no row has one of the columns `by`.
    """
    added = tuple(dict.fromkeys(name for name in by if name not in POINT))
    if taken := sorted({"example", "sample", "file", "offset", "length", "problem"} & {*added}):
        raise SpecError(f"by must name a column that groups examples, got {taken[0]}")
    spans = list(_spans(files))
    size = sum(span.end - span.start for span in spans)
    count = workers or (1 if size < ALONE_BYTES else min(os.cpu_count() or 1, 8))
    read = partial(read_span, judge=judge, by=added)
    gathered = _Gathered(files, added)
    if count == 1:
        for span in spans:
            gathered.add(read(span))
    else:
        with ProcessPoolExecutor(count, mp_context=get_context("fork")) as pool:
            for chunk in pool.map(read, spans):
                gathered.add(chunk)
    table = gathered.table()
    for name in added:
        if table.rows[name].isna().all() and len(table.rows):
            raise SpecError(f"by must name a column of the rows, {_choices(table)}, got {name!r}")
    # What a pass improved follows from the new verdicts.
    return table if judge is None else table.with_verdicts(table.passes["correct"])


def _choices(table: Table) -> str:
    """The columns of the first row that may group rows."""
    row = table.row(table.rows.index[0])
    inner = row.get("metadata")
    columns = row | (inner if isinstance(inner, dict) else {})
    names = sorted(n for n, v in columns.items() if isinstance(v, str | int | float | bool))
    return f"such as {', '.join(names)}"


def _spans(files: Sequence[RowFile]) -> Iterator[Span]:
    for number, file in enumerate(files):
        size = file.path.stat().st_size
        for start in range(0, max(size, 1), SPAN_BYTES):  # an empty file has its columns too
            yield Span(number, file.path, start, min(start + SPAN_BYTES, size))


@dataclass(slots=True)
class _Gathered:
    """Chunks on their way to one table, their codes made common."""

    files: Sequence[RowFile]
    by: tuple[str, ...] = ()
    rows: list[dict[str, Array]] = field(default_factory=list)
    passes: list[dict[str, Array]] = field(default_factory=list)
    labels: Codes = field(default_factory=Codes)
    words: Codes = field(default_factory=Codes)
    count: int = 0
    broken: int = 0

    def add(self, chunk: Chunk) -> None:
        chunk.rows["label"] = _recode(chunk.rows["label"], chunk.labels, self.labels)
        chunk.passes["words"] = _recode(chunk.passes["words"], chunk.words, self.words)
        chunk.passes["row"] += np.int32(self.count)
        self.count += len(chunk.rows["key"])
        self.broken += chunk.broken
        self.rows.append(chunk.rows)
        self.passes.append(chunk.passes)

    def table(self) -> Table:
        rows = self._row_frame(_concatenate(self.rows))
        passes = self._pass_frame(_concatenate(self.passes))
        old = _superseded(rows.pop("key"), rows, passes)
        if len(old):
            rows = rows.drop(index=old)
            passes = passes[~passes["row"].isin(old)]
        return Table(list(self.files), rows, passes, self.broken, len(old), self.by)

    def _row_frame(self, columns: dict[str, Array]) -> pd.DataFrame:
        owner, label = columns["file"], columns.pop("label")
        said = list(self.labels)
        by_label = np.array([np.nan if w[2] is None else w[2] for w in said], float)
        temperatures = by_label[label] if len(said) else np.empty(0)
        by_path = np.array([np.nan if f.temperature is None else f.temperature for f in self.files])
        steps, path_steps = columns["step"], np.array([f.step for f in self.files], np.int32)
        columns["step"] = np.where(steps < 0, path_steps[owner], steps)
        # Rows of other folders never replace each other.
        folders, runs = Codes(), Codes()
        folder = np.array([folders[f.folder] for f in self.files], np.uint64)
        columns["key"] = columns["key"] ^ (folder[owner] * np.uint64(0x9E3779B97F4A7C15))
        run = np.array([runs[f.run] for f in self.files], np.int32)
        named = {
            "run": pd.Categorical.from_codes(run[owner], list(runs)),
            "task": _category(label, [w[0] for w in said]),
            "model": _category(label, [w[1] for w in said]),
            "temperature": np.where(np.isnan(temperatures), by_path[owner], temperatures),
            "seed": _category(label, [w[3] for w in said]),
            "grader": _category(label, [_text(w[4]) for w in said]),
        }
        named |= {
            n: _category(label, [_text(w[5 + i]) for w in said]) for i, n in enumerate(self.by)
        }
        return pd.DataFrame(named | columns, copy=False)

    def _pass_frame(self, columns: dict[str, Array]) -> pd.DataFrame:
        code, words = columns.pop("words"), list(self.words)
        control = np.array([control for _, control, *_ in words], bool)
        named = {
            "row": columns.pop("row"),
            "pass": pd.Categorical.from_codes(columns.pop("pass"), list(PASS_NAMES)),
            "cue": _category(code, [cue for cue, *_ in words]),
            "control": control[code] if words else np.empty(0, bool),
            "stop_think": _category(code, [think for *_, think, _ in words]),
            "stop_answer": _category(code, [answer for *_, answer in words]),
        }
        return pd.DataFrame(named | columns, copy=False)


def _superseded(key: pd.Series, rows: pd.DataFrame, passes: pd.DataFrame) -> Any:
    """Rows that another one with the same key replaces, by the rule of `store.row_index.Index`.

    It is written anew here because it is taken over millions of rows at once.
    """
    doubled = rows[key.duplicated(keep=False) & (rows["sample"] >= 0)]
    count = np.bincount(passes["row"], minlength=len(rows))
    found = pd.DataFrame({"key": key, "file": doubled["file"]}, index=doubled.index)
    found["fewer"] = -count[doubled.index]
    found = found.drop_duplicates(["key", "file"], keep="last")
    found = found.sort_values(["fewer", "file"], kind="stable").drop_duplicates("key")
    return doubled.index.difference(found.index)


def _recode(codes: Array, values: Sequence[Any], common: Codes) -> Array:
    return np.array([common[value] for value in values], np.int32)[codes] if values else codes


def _text(value: Any) -> Any:
    """JSON as it is shown: a text as itself, null as missing."""
    if not isinstance(value, bytes):
        return value
    found = json.loads(value)
    return found if found is None or isinstance(found, str) else value.decode()


def _category(codes: Array, values: Sequence[Any]) -> pd.Categorical:
    """A categorical of `values[code]`; None is missing."""
    names = Codes()
    to_name = np.array([-1 if value is None else names[value] for value in values], np.int32)
    return pd.Categorical.from_codes(to_name[codes] if len(values) else codes, list(names))


def _concatenate(parts: list[dict[str, Array]]) -> dict[str, Array]:
    """Columns over all chunks; the chunks' own are let go one by one."""
    whole = {}
    for name in list(parts[0]) if parts else []:
        whole[name] = np.concatenate([part.pop(name) for part in parts])
    return whole
