"""What a person sees in the terminal when a run has ended."""

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from launch.reporting.cells import number
from launch.running.console import table_console
from pipeline.run.point import Point
from pipeline.run.session import Session
from pipeline.store.row_index import parts_of

STATES = {
    "shared": "done here, the rest is with other shards",
    "interrupted": "interrupted, the same command goes on",
}


def print_summary(sessions: Sequence[Session], spoken: bool = False) -> None:
    """One table per point: accuracy, entropy and tokens of every pass, then where the rows are.

    Where the answer itself was printed (`spoken`), the rest goes to standard error, without table.
    """
    console = Console(stderr=True, highlight=False) if spoken else table_console()
    for session in sessions:
        if session.folder.num_complete and session.status != "shared" and not spoken:
            console.print(_table(session.point))
        for error in session.failures[:3]:
            console.print(f"failed: {type(error).__name__}: {error}", style="red", markup=False)
        state = STATES.get(session.status, session.status)
        state += f": {session.folder.num_complete} of {len(session.folder.plan.order)} rows"
        if session.failures:
            state += f", {len(session.failures)} failed (see failures.jsonl)"
        console.print(state, markup=False)
        cost = (session.folder.record.attempt.get("backend") or {}).get("cost_usd")
        if cost is not None:
            console.print(f"cost of this attempt: {cost:.4g} USD")
        if session.budget.exhausted:
            console.print(session.budget.sentence(), style="red", markup=False)
        console.print(str(session.point.rows_path), markup=False, soft_wrap=True)


def _table(point: Point) -> Table:
    from pipeline.analysis.row_files import find  # pandas, which a line that only composes spares
    from pipeline.analysis.summary import passes
    from pipeline.analysis.table import load

    table = Table(title=point.title)
    for name in ("pass", "cue", "rows", "correct", "improved", "entropy", "tokens", "truncated"):
        table.add_column(name, justify="left" if name in ("pass", "cue") else "right")
    files = [path for path in (point.rows_path, *parts_of(point.rows_path)) if path.exists()]
    found = passes(load(find(files), workers=1), by=("pass", "cue"))
    for line in found.to_dict("records"):
        table.add_row(
            line["pass"],
            line["cue"] if isinstance(line["cue"], str) else "",
            str(line["rows"]),
            _percent(line["accuracy"]),
            _percent(line["improved"]),
            _number("entropy", line["entropy"]),
            _number("tokens", line["tokens"]),
            _percent(line["truncated"]),
        )
    return table


def _percent(share: float) -> str:
    return "" if math.isnan(share) else f"{number('accuracy', share)} %"


def _number(name: str, value: float) -> str:
    return "" if math.isnan(value) else number(name, value)
