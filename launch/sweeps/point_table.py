"""The table of points at a sweep's end."""

import math
from collections.abc import Mapping, Sequence

from rich.table import Table

from launch.reporting.cells import number
from launch.running.console import table_console
from launch.sweeps.packs import swept
from launch.sweeps.points import SweepPoint, rows_of
from pipeline.analysis.row_files import find
from pipeline.analysis.summary import passes
from pipeline.analysis.table import load
from pipeline.run.point import Point
from pipeline.store.row_index import parts_of

SEED = "run.seed"


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
    if len(members) > 1 and (accuracies := accuracy_table(members)):
        console.print(accuracies)
    for line in reasons:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    states = {state_of(member, failures) for member in members}
    return 0 if states <= {"done", "skipped"} and not failures else 1


def accuracy_table(members: Sequence[SweepPoint]) -> Table | None:
    """The accuracy of every pass, by what the sweep varies, as the mean over `run.seed`.

    Points without rows are left out; None where no point has any.
    """
    keys = [key for key in swept([member.setup for member in members]) if key != SEED]
    groups: dict[tuple[str, ...], list[dict[str, float]]] = {}
    for member in members:
        if member.point and (accuracies := _accuracies(member.point)):
            groups.setdefault(_values(member, keys), []).append(accuracies)
    names = sorted({name for group in groups.values() for point in group for name in point})
    if not names:
        return None
    table = Table(title="accuracy, mean over seeds", title_style="")
    for name in (*keys, "points", *names):
        table.add_column(name, overflow="fold")
    for values, group in groups.items():
        table.add_row(*values, str(len(group)), *(_mean(group, name) for name in names))
    return table


def _accuracies(point: Point) -> dict[str, float]:
    paths = [p for p in (point.rows_path, *parts_of(point.rows_path)) if p.exists()]
    if not any(path.stat().st_size for path in paths):
        return {}
    rows = passes(load(find(paths), workers=1), by=("pass",)).to_dict("records")
    return {row["pass"]: row["accuracy"] for row in rows if not math.isnan(row["accuracy"])}


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
