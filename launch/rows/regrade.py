"""Judges the passes of finished rows again, with the task's grader of today."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from launch.config.compose import compose_task
from pipeline.analysis.columns import Array
from pipeline.analysis.table import Table
from pipeline.backfill.stored_rows import example_of, generations, phases_of
from pipeline.protocols import Task
from pipeline.spec import SpecError
from pipeline.store.files import Row

CONF = Path(__file__).resolve().parents[2] / "conf"
AT_ONCE = 256
THREADS = 8
ROWS_OWN = "row"  # grade each row with the task that it names
Verdicts = dict[str, bool | None]


class Graders:
    """Tasks by name, made when the first row needs them."""

    def __init__(self, name: str = ROWS_OWN) -> None:
        """`name`: one task for every row, or the row's own."""
        self.name = name
        self._made: dict[str, Task] = {}

    def of(self, row: Row) -> Task:
        """The task that judges a row. SpecError where the row names none that there is."""
        name = row.get("task") if self.name == ROWS_OWN else self.name
        if not isinstance(name, str):
            raise SpecError("rows that name no task are graded again with --recompute TASK")
        if name not in self._made:
            try:
                self._made[name] = compose_task([f"task={name}"])
            except SpecError as error:
                whose = "the rows' task" if self.name == ROWS_OWN else "--recompute"
                raise SpecError(f"{whose} {name}: {error}") from error
        return self._made[name]


def regrade(table: Table, graders: Graders) -> Table:
    """The table with new verdicts: `correct`, and `improved` by them. Nothing is generated."""
    owners = table.passes["row"].to_numpy()  # ascending
    names = table.passes["pass"].astype(str).to_numpy()
    verdicts = np.full(len(names), np.nan, np.float32)
    rows = table.stream()
    with ThreadPoolExecutor(THREADS) as pool:
        while batch := list(islice(rows, AT_ONCE)):
            tasks = [graders.of(row) for _, row in batch]  # Hydra composes one at a time
            judged = pool.map(judge, [row for _, row in batch], tasks)
            for (index, _), found in zip(batch, judged, strict=True):
                start, end = np.searchsorted(owners, [index, index + 1])
                verdicts[start:end] = [_number(found.get(name)) for name in names[start:end]]
    return _with_verdicts(table, verdicts)


def judge(row: Row, task: Task) -> Verdicts:
    """Verdicts by pass."""
    phases, example = phases_of(row, task), example_of(row)
    found = {}
    for name, fields in passes_of(row):
        by_phase = {p.name: g for p, g in zip(phases, generations(fields, phases), strict=True)}
        found[name] = task.score(example, by_phase)["is_correct_pred"]
    return found


def passes_of(row: Row) -> Iterator[tuple[str, dict[str, Any]]]:
    """The pass objects that hold an output."""
    for name, fields in row.items():
        if name.startswith("pass") and isinstance(fields, dict) and "output" in fields:
            yield name, fields


def _number(right: bool | None) -> float:
    return float("nan") if right is None else float(right)


def _with_verdicts(table: Table, verdicts: Array) -> Table:
    passes = table.passes.assign(correct=verdicts)
    is_first = passes["pass"] == "pass1"
    first = passes[is_first].set_index("row")["correct"]
    before = first.reindex(passes["row"]).to_numpy()
    gained = (passes["correct"] > 0) & (before == 0)
    known = passes["correct"].notna() & ~np.isnan(before) & ~is_first
    passes["improved"] = gained.astype(np.float32).where(known)
    return Table(table.files, table.rows, passes, table.broken, table.superseded)
