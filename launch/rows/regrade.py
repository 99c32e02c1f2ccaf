"""Judges the passes of finished rows again, by the settings of their runs or by others."""

from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import numpy as np

from launch.rows.stored_task import MISFITS, StoredTasks
from pipeline.analysis.table import Table
from pipeline.backfill.stored_rows import example_of, generations, phases_of
from pipeline.protocols import Task
from pipeline.spec import SpecError
from pipeline.store.files import Row
from pipeline.store.pass_names import passes_with_output

ROWS_AT_ONCE = 256
THREADS = 8
Verdicts = dict[str, bool | None]


def regrade(table: Table, tasks: StoredTasks) -> Table:
    """The table with new verdicts; the recorded ones stay beside them. Nothing is generated.

    Raises:
        SpecError: a row has no task, or not the columns that its task judges by.
    """
    owners = table.passes["row"].to_numpy()  # ascending
    names = table.passes["pass"].astype(str).to_numpy()
    verdicts = np.full(len(names), np.nan, np.float32)
    folders = [file.path.parent for file in table.files]
    files = table.rows["file"]
    rows = table.stream()
    with ThreadPoolExecutor(THREADS) as pool:
        while batch := list(islice(rows, ROWS_AT_ONCE)):
            # Tasks are made here: Hydra composes one at a time.
            by_row = [tasks.of(folders[files[index]], row) for index, row in batch]
            judged = pool.map(judge, [row for _, row in batch], by_row)
            for (index, _), by_pass in zip(batch, judged, strict=True):
                start, end = np.searchsorted(owners, [index, index + 1])
                verdicts[start:end] = [_number(by_pass.get(name)) for name in names[start:end]]
    return table.with_verdicts(verdicts)


def judge(row: Row, task: Task) -> Verdicts:
    """Verdicts by pass."""
    phases, example = phases_of(row, task), example_of(row)
    verdicts = {}
    try:
        for name, fields in passes_with_output(row).items():
            by_phase = {p.name: g for p, g in zip(phases, generations(fields, phases), strict=True)}
            verdicts[name] = task.score(example, by_phase)["is_correct_pred"]
    except MISFITS as error:
        text = f"{type(error).__name__}: {error}"
        raise SpecError(
            f"example {example.id}: task {task.name} cannot judge it ({text})"
        ) from error
    return verdicts


def _number(right: bool | None) -> float:
    return float("nan") if right is None else float(right)
