"""What a person sees in the terminal: progress, and the summary at the end."""

import math
import time
from collections.abc import Sequence
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from pipeline.analysis.row_files import find
from pipeline.analysis.summary import passes
from pipeline.analysis.table import load
from pipeline.run.point import Point
from pipeline.run.session import Session
from pipeline.store.files import Row
from pipeline.store.rows import parts_of

STATES = {"shared": "done here, the rest is with other shards"}


class Progress:
    """A bar over traces with tokens per second and time left."""

    def __init__(self, points: Sequence[Point]) -> None:
        """Make the bar; sessions make its total known as they open."""
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        name = points[0].task.name if len(points) == 1 else f"{len(points)} points"
        samples = [point.spec.sampling.num_samples for point in points]
        rows = sum(len(p.examples) * count for p, count in zip(points, samples, strict=True))
        self._task = self._bar.add_task(name, total=rows, rate="no row yet")
        self._sessions: set[int] = set()
        self._total = self._done = self._tokens = 0
        self._start = time.monotonic()

    def __enter__(self) -> Self:
        """Show the bar."""
        self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Leave the bar as it is."""
        self._bar.stop()

    def on_row(self, session: Session, row: Row | None) -> None:
        """Count one more trace, finished or failed."""
        if id(session) not in self._sessions:
            self._sessions.add(id(session))
            self._total += len(session.todo)
        self._done += 1
        self._tokens = session.folder.record.attempt["tokens"]
        seconds = max(time.monotonic() - self._start, 1e-9)
        rate = f"{self._tokens / seconds:.0f} tokens/s"
        self._bar.update(self._task, total=self._total, completed=self._done, rate=rate)


def print_summary(sessions: Sequence[Session]) -> None:
    """One table per point: accuracy, entropy and tokens of every pass, then where the rows are."""
    console = Console()
    for session in sessions:
        if session.folder.num_complete and session.status != "shared":
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
            console.print(f"cost of this attempt: {cost:.4f} USD")
        if session.budget.exhausted:
            console.print(session.budget.sentence(), style="red", markup=False)
        console.print(str(session.point.rows_path), markup=False, soft_wrap=True)


def _table(point: Point) -> Table:
    table = Table(title=point.folder.parent.name or str(point.folder))
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
            _number(line["entropy"], 3),
            _number(line["tokens"], 1),
            _percent(line["truncated"]),
        )
    return table


def _percent(share: float) -> str:
    return "" if math.isnan(share) else f"{100 * share:.1f} %"


def _number(value: float, digits: int) -> str:
    return "" if math.isnan(value) else f"{value:.{digits}f}"
