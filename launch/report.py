"""One HTML file: `python launch/report.py outputs/... [--compare RUN] -o report.html`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from launch.config.command_line import ended
from launch.reporting.page_file import SHOWN_ROWS, TITLE, write_report
from launch.rows.stored_task import StoredTasks


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python launch/report.py",
        description="Write runs, ours and the original's, as one HTML file that opens offline.",
    )
    parser.add_argument("runs", nargs="+", help="run folders, or files of rows")
    parser.add_argument(
        "--compare", nargs="+", default=(), metavar="RUN", help="a second run, side by side"
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("report.html"))
    parser.add_argument("--title", default=TITLE)
    parser.add_argument(
        "--by", nargs="+", default=(), metavar="COLUMN", help="group by columns of the data too"
    )
    parser.add_argument(
        "--config-dir",
        type=Path,
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
    return ended(lambda: write_and_tell(given))


def write_and_tell(given: argparse.Namespace) -> None:
    """Write the report that the command line asks for, and say where it is."""
    tasks = StoredTasks(config_dirs=given.config_dir)
    size = write_report(
        given.output, given.runs, given.compare, given.rows, given.title, tasks, given.by
    )
    print(f"{given.output}: {size / 1e6:.1f} MB, opens in a browser without a network")


if __name__ == "__main__":
    sys.exit(main())
