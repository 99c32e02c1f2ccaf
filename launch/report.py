"""One HTML file: `python launch/report.py outputs/... [--compare RUN] -o report.html`.

`python launch/report.py outputs/ --serve` shows many runs in a browser while they go on.
"""

from launch.config.interrupts import guard

if __name__ == "__main__":
    guard()  # before libraries load

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from launch.config.command_line import ended, filled, named
from launch.reporting.live import LiveRuns
from launch.reporting.page_file import SHOWN_ROWS, TITLE, write_report
from launch.reporting.server import serve
from launch.rows.stored_task import StoredTasks
from pipeline.analysis.row_files import find, refuse_own_input
from pipeline.spec import require


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python launch/report.py",
        description="Write runs, ours and the original's, as one HTML file that opens offline.",
    )
    parser.add_argument("runs", nargs="+", type=filled, help="run folders, or files of rows")
    parser.add_argument(
        "--compare",
        nargs="+",
        type=filled,
        default=(),
        metavar="RUN",
        help="a second run, side by side",
    )
    parser.add_argument("-o", "--output", type=named, help="the file, report.html unless said")
    parser.add_argument("--title", help=f"the page's title, {TITLE!r} unless said")
    parser.add_argument(
        "--serve", action="store_true", help="list the runs below the folders, and open their pages"
    )
    parser.add_argument("--port", type=int, help="where --serve listens, 8000 unless said")
    parser.add_argument("--host", help="where --serve listens, 127.0.0.1 unless said")
    parser.add_argument(
        "--by", nargs="+", default=(), metavar="COLUMN", help="group by columns of the data too"
    )
    parser.add_argument(
        "--config-dir",
        type=named,
        action="append",
        default=[],
        metavar="DIR",
        help="a folder of configuration whose tasks are trusted as those of conf/ (docs/trust.md)",
    )
    shown = (
        f"rows of each run in the sample browser, {SHOWN_ROWS} unless said; numbers use all rows"
    )
    parser.add_argument("--rows", type=int, default=SHOWN_ROWS, help=shown)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report. Returns the exit status."""
    given = parse(arguments)
    return ended(lambda: serve_runs(given) if given.serve else write_and_tell(given))


def serve_runs(given: argparse.Namespace) -> None:
    """Serve the live view until it is interrupted."""
    for name in ("output", "title", "compare"):
        require(not getattr(given, name), f"--{name}", "be left out with --serve", name)
    require(given.rows >= 0, "--rows", "be 0 or more", given.rows)
    roots = [Path(run) for run in given.runs]
    for root in roots:
        require(root.is_dir(), "--serve", "be given folders that exist", str(root))
    runs = LiveRuns(roots, given.by, given.rows, StoredTasks(config_dirs=given.config_dir))
    serve(runs, given.host or "127.0.0.1", 8000 if given.port is None else given.port)


def write_and_tell(given: argparse.Namespace) -> None:
    """Write the report that the command line asks for, and say where it is."""
    for name in ("port", "host"):
        value = getattr(given, name)
        require(value is None, f"--{name}", "be left out without --serve", value)
    tasks = StoredTasks(config_dirs=given.config_dir)
    output, title = given.output or Path("report.html"), given.title or TITLE
    refuse_own_input(output, find([*given.runs, *given.compare]), "--output")
    size = write_report(output, given.runs, given.compare, given.rows, title, tasks, given.by)
    print(f"{output}: {size / 1e6:.1f} MB, opens in a browser without a network")


if __name__ == "__main__":
    sys.exit(main())
