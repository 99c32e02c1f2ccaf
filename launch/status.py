"""A live view of run folders: `python launch/status.py outputs/temperatures`.

`--manifest FILE` writes the overrides of every point that is not whole, for `run.manifest=FILE`.
"""

from launch.config.interrupts import guard

if __name__ == "__main__":
    guard()  # before libraries load

import argparse
import datetime
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from omegaconf import OmegaConf
from rich.live import Live
from rich.table import Table

from launch.config.command_line import ended, named
from launch.running.console import table_console
from launch.sweeps.point_status import PointStatus, Reader
from pipeline.spec import SpecError, require
from pipeline.store.files import write_atomically


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
    """Show until every point is whole; status 2 where there is no run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=named, help="run folders, or folders of them")
    parser.add_argument("--once", action="store_true", help="print once and end, as into a pipe")
    parser.add_argument("--seconds", type=float, default=2.0, help="between two looks")
    parser.add_argument("--manifest", type=named, help="write points that are not whole there")
    given = parser.parse_args(arguments)
    return ended(lambda: _show(given))


def _show(given: argparse.Namespace) -> int:
    reader = Reader(given.folders)
    points = reader.points()
    console = table_console()
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
    with Live(table(points), refresh_per_second=4) as live:
        while not points or any(point.state != "complete" for point in points):
            time.sleep(given.seconds)
            points = reader.points()
            live.update(table(points))
    return 0


if __name__ == "__main__":
    sys.exit(main())
