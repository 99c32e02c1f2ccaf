"""The table of points at a sweep's end."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from launch.reporting.cells import number
from launch.running.console import table_console
from launch.sweeps.packs import swept
from launch.sweeps.points import SweepPoint, rows_of
from pipeline.analysis.row_files import find
from pipeline.analysis.summary import passes
from pipeline.analysis.table import load
from pipeline.store.row_index import parts_of

SEED = "run.seed"
JUDGED_OTHERWISE = (
    "{}: {} rows were judged by other settings of the task than this sweep's; "
    "`launch/summarize.py --recompute` judges all of them alike"
)


def print_points(members: Sequence[SweepPoint], failures: Mapping[str, str]) -> int:
    """Print every point: done, failed and why, or missing.

    Returns 0 if all are done and no job failed on the way, else 1.
    """
    table = Table(title=f"{len(members)} points")
    for name in ("point", "rows", "state", "job"):
        table.add_column(name, overflow="fold")
    reasons: list[str] = []
    for member in members:
        state = state_of(member, failures)
        table.add_row(member.name, rows_of(member), state, member.job)
        why = member.problem or failures.get(member.name, "")
        if why:
            reasons.append(f"{state}{', but' if state == 'done' else ''}: {member.name}: {why}")
    console = table_console()
    console.print(table)
    if len(members) > 1:
        judged = [(member, found) for member in members if (found := judged_rows(member))]
        if judged:
            console.print(accuracy_table(judged, swept([member.setup for member in members])))
        reasons += [
            JUDGED_OTHERWISE.format(m.name, f.num_others) for m, f in judged if f.num_others
        ]
    for line in reasons:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    states = {state_of(member, failures) for member in members}
    return 0 if states <= {"done", "skipped"} and not failures else 1


@dataclass(frozen=True, slots=True)
class JudgedRows:
    """What the rows of a point say: accuracy by pass, and how many another grader judged."""

    accuracies: dict[str, float]
    num_others: int


def judged_rows(member: SweepPoint) -> JudgedRows | None:
    """The verdicts of a point's rows; None where there are none."""
    point = member.point
    paths = [point.rows_path, *parts_of(point.rows_path)] if point else []
    paths = [path for path in paths if path.exists() and path.stat().st_size]
    if point is None or not paths:
        return None
    rows = load(find(paths), workers=1)
    lines = passes(rows, by=("pass",)).to_dict("records")
    known = {line["pass"]: line["accuracy"] for line in lines if not math.isnan(line["accuracy"])}
    graders = rows.rows["grader"].dropna()
    return JudgedRows(known, int((graders != point.grader).sum())) if known else None


def accuracy_table(judged: Sequence[tuple[SweepPoint, JudgedRows]], keys: Sequence[str]) -> Table:
    """The accuracy of every pass by the values of the swept `keys`, as the mean over seeds."""
    seeds, keys = SEED in keys, [key for key in keys if key != SEED]
    groups: dict[tuple[str, ...], list[dict[str, float]]] = {}
    for member, found in judged:
        groups.setdefault(_values(member, keys), []).append(found.accuracies)
    names = sorted({name for group in groups.values() for point in group for name in point})
    title = "accuracy, mean over seeds" if seeds else "accuracy"
    table = Table(title=title, title_style="", min_width=len(title))
    for name in (*keys, "points", *names):
        table.add_column(name, overflow="fold")
    for values, group in groups.items():
        table.add_row(*values, str(len(group)), *(_mean(group, name) for name in names))
    return table


def _values(member: SweepPoint, keys: Sequence[str]) -> tuple[str, ...]:
    typed = dict(o.lstrip("+~").partition("=")[::2] for o in member.setup.overrides)
    return tuple(typed.get(key, "") for key in keys)


def _mean(group: Sequence[Mapping[str, float]], name: str) -> str:
    found = [accuracies[name] for accuracies in group if name in accuracies]
    return f"{number('accuracy', sum(found) / len(found))} %" if found else ""


def state_of(member: SweepPoint, failures: Mapping[str, str]) -> str:
    """`done`, `failed`, `incomplete`, `skipped` or `missing` (its checkpoint)."""
    if member.point is None:
        return "skipped" if member.setup.spec.run.missing_checkpoint == "skip" else "missing"
    if not member.missing:
        return "done"
    return "failed" if member.name in failures else "incomplete"
