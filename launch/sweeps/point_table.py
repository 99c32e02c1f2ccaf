"""The table of points at a sweep's end."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from launch.sweeps.points import Member


def print_points(members: Sequence[Member], failures: Mapping[str, str]) -> int:
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
    console = Console()
    console.print(table)
    for line in reasons:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    states = {state_of(member, failures) for member in members}
    return 0 if states <= {"done", "skipped"} and not failures else 1


def state_of(member: Member, failures: Mapping[str, str]) -> str:
    """`done`, `failed`, `incomplete`, `skipped` or `missing` (its checkpoint)."""
    if member.point is None:
        return "skipped" if member.draft.spec.run.missing_checkpoint == "skip" else "missing"
    if not member.missing:
        return "done"
    return "failed" if member.name in failures else "incomplete"


def rows_of(member: Member) -> str:
    """Rows that are there, of those asked for."""
    if member.point is None:
        return ""
    total = len(member.point.canonical_order())
    return f"{total - member.missing}/{total}"
