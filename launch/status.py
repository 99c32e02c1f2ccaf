"""A live view of run folders: `python launch/status.py outputs/temperatures`.

`--manifest FILE` writes the overrides of every point that is not whole, for `run.manifest=FILE`.
"""

import argparse
import datetime
import math
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console
from rich.live import Live
from rich.table import Table

from launch.config.command_line import ended
from launch.sweeps.listing import Listed, listed
from launch.sweeps.points import count_lines
from launch.sweeps.submitted_jobs import NOTE
from pipeline.protocols import Cue
from pipeline.run.pass_fields import cue_hash
from pipeline.spec import SpecError, require
from pipeline.store.files import read_lines, write_atomically
from pipeline.store.leases import Leases
from pipeline.store.pass_names import stored_passes
from pipeline.store.rows import key_of, parts_of, read_rows
from pipeline.store.run_record import attempts_of, read_record


@dataclass(slots=True)
class PointStatus:
    """How one run folder stands, by its files alone."""

    folder: Path | None  # None: a sweep waits for its checkpoint
    writers: list[str]  # those that live, or of whom nothing else is known
    rows: int
    wanted: int
    state: str  # complete, running, or how the last attempt ended
    tokens_per_second: float
    rows_per_second: float
    error: str
    overrides: Sequence[str] = ()  # of a point that has not begun
    swept: Sequence[str] = ()  # what tells it from others of its sweep, as key=value

    @property
    def name(self) -> str:
        """What tells it from others."""
        if self.folder is None:
            return " ".join(self.overrides)
        return " ".join(["/".join(self.folder.parts[-2:]), *self.swept])

    @property
    def seconds_left(self) -> float | None:
        """At the present pace; None when nobody works or no row has come yet."""
        left = max(0, self.wanted - self.rows)
        return left / self.rows_per_second if self.rows_per_second else None


class Reader:
    """Looks at run folders again and again; it remembers whose heart has beaten."""

    def __init__(self, roots: Sequence[Path]) -> None:
        """Nothing is read yet."""
        self.roots = roots
        self._leases: dict[Path, Leases] = {}

    def points(self) -> list[PointStatus]:
        """Every folder with a run.json, in order, then what sweeps have not begun."""
        started = {path.parent for root in self.roots for path in root.rglob("run.json")}
        planned = [point for root in self.roots for point in listed(root)]
        started |= {p.folder for p in planned if p.folder and (p.folder / "run.json").exists()}
        waiting = {p.name: p for p in (_waiting(q) for q in planned if q.folder not in started)}
        return [*(self._point(folder) for folder in sorted(started)), *waiting.values()]

    def _point(self, folder: Path) -> PointStatus:
        record = read_record(folder / "run.json", "spec")
        attempts = attempts_of(folder)
        rows = sum(map(count_lines, _row_files(folder, record)))
        wanted = record.get("rows_wanted", 0)
        leases = self._leases.setdefault(folder, Leases(folder, 60))
        writers = [name for name, alive in leases.others().items() if alive is not False]
        working = [a for a in attempts if a["status"] == "running" and _is_of(a, writers)]
        seconds = [max(a["seconds"], 1e-9) for a in working]
        last = attempts[-1]["status"] if attempts else "empty"
        return PointStatus(
            folder,
            writers,
            rows,
            wanted,
            _state(last, writers, rows >= wanted and (last == "complete" or _is_whole(folder))),
            sum(a["tokens"] / s for a, s in zip(working, seconds, strict=True)),
            sum(a["rows"] / s for a, s in zip(working, seconds, strict=True)),
            _last_error(folder),
            swept=[f"{k}={v}" for k, v in (record.get("swept") or {}).items()],
        )


def _waiting(point: Listed) -> PointStatus:
    state = "no checkpoint"
    if point.folder is not None:
        state = "submitted" if (point.folder / NOTE).exists() else "not begun"
    about = (state, 0.0, 0.0, point.problem, point.overrides)
    return PointStatus(point.folder, [], 0, point.rows_wanted, *about)


def _row_files(folder: Path, record: dict[str, Any]) -> list[Path]:
    path = folder / f"step{record['step']:04d}_{record['spec']['run']['split']}.jsonl"
    return [file for file in (path, *parts_of(path)) if file.exists()]


def _is_whole(folder: Path) -> bool:
    """Whether every row has the passes of the run's cues, whatever became of its last attempt."""
    record = read_record(folder / "run.json", "spec")
    cues = [Cue(name, **about) for name, about in record["spec"]["cue"].items()]
    hashes = {cue_hash(cue) for cue in cues}
    path = folder / f"step{record['step']:04d}_{record['spec']['run']['split']}.jsonl"
    passes = {key_of(row): {p["cue_hash"] for p in stored_passes(row)} for row in read_rows(path)}
    whole = [key for key, made in passes.items() if made >= hashes]
    return len(whole) >= int(record.get("rows_wanted", 0))


def _is_of(attempt: dict[str, Any], writers: Sequence[str]) -> bool:
    return any(name.startswith(f"{attempt['host']}-{attempt['pid']}-") for name in writers)


def _state(last: str, writers: Sequence[str], enough: bool) -> str:
    if writers:
        return "running"
    if enough or last == "complete":
        return "complete" if enough else "incomplete"
    return "died" if last == "running" else last


def _last_error(folder: Path) -> str:
    files = sorted(folder.glob("failures*.jsonl"), key=lambda file: file.stat().st_mtime)
    if not files:
        return ""
    lines = [row for _, row in read_lines(files[-1]) if row is not None]
    return str(lines[-1]["error"]) if lines else ""


def table(points: Sequence[PointStatus]) -> Table:
    """What is shown: a line per point, and their sum."""
    shown = Table(caption=_summary(points))
    for name in ("point", "state", "shards", "rows", "tokens/s", "left", "last error"):
        shown.add_column(name, overflow="fold")
    for point in points:
        shown.add_row(
            point.name,
            point.state,
            str(len(point.writers) or ""),
            f"{point.rows}/{point.wanted}" if point.folder else "",
            f"{point.tokens_per_second:.0f}" if point.writers else "",
            _time(point.seconds_left),
            point.error,
        )
    return shown


def _summary(points: Sequence[PointStatus]) -> str:
    whole = sum(point.state == "complete" for point in points)
    rows, wanted = sum(p.rows for p in points), sum(p.wanted for p in points)
    speed = sum(point.tokens_per_second for point in points)
    return f"{whole} of {len(points)} points, {rows} of {wanted} rows, {speed:.0f} tokens/s"


def _time(seconds: float | None) -> str:
    return "" if seconds is None else str(datetime.timedelta(seconds=round(seconds)))


def write_manifest(path: Path, points: Sequence[PointStatus]) -> int:
    """The overrides of every point that is not whole, one a line. Returns how many."""
    lines = [_overrides(point) for point in points if point.state != "complete"]
    kept = [[o for o in line if not o.startswith("run.manifest=")] for line in lines]
    write_atomically(path, ("\t".join(line).encode() + b"\n" for line in kept))
    return len(kept)


def _overrides(point: PointStatus) -> list[str]:
    if point.overrides or point.folder is None:
        return list(point.overrides)
    return [str(override) for override in OmegaConf.load(point.folder / "overrides.yaml")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Show until every point is whole or the person leaves; status 2 where there is no run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, help="run folders, or folders of them")
    parser.add_argument("--once", action="store_true", help="print once and end, as into a pipe")
    parser.add_argument("--seconds", type=float, default=2.0, help="between two looks")
    parser.add_argument("--manifest", type=Path, help="write points that are not whole there")
    given = parser.parse_args(arguments)
    return ended(lambda: _show(given))


def _show(given: argparse.Namespace) -> int:
    reader = Reader(given.folders)
    points = reader.points()
    console = Console()
    once = given.once or bool(given.manifest) or not console.is_terminal
    where = ", ".join(map(str, given.folders))
    if not points and once:
        raise SpecError(f"no run.json below {where}")
    require(0 < given.seconds < math.inf, "--seconds", "be above 0, and finite", given.seconds)
    if given.manifest:
        print(f"{write_manifest(given.manifest, points)} points in {given.manifest}")
    if given.once or not console.is_terminal:
        console.print(table(points))
        return 0
    if not points:
        console.print(f"waiting for a first run.json below {where}", markup=False)
    with suppress(KeyboardInterrupt), Live(table(points), refresh_per_second=4) as live:
        while not points or any(point.state != "complete" for point in points):
            time.sleep(given.seconds)
            points = reader.points()
            live.update(table(points))
    return 0


if __name__ == "__main__":
    sys.exit(main())
