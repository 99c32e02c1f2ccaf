"""Solves Rush Hour boards (`boards.py solve FILE.jsonl`), or makes some (`generate --size 5`)."""

from launch.config.interrupts import guard

if __name__ == "__main__":
    guard()  # before libraries load

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

from components.data_sets.records import DataError, read_file
from components.grading.rush_hour.board import BoardError, parse_board
from components.grading.rush_hour.generator import Recipe, generate
from components.grading.rush_hour.solver import solve
from launch.config.command_line import ended, filled


def solved_rows(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where each row stands, and the row with `moves` (the optimum) and `solution`.

    Both are null when the board has no solution. A file's own optimum that differs is kept as
    `moves_in_file`.
    """
    for record in read_file(path, "the file to solve"):
        text = record.values.get("board")
        if not isinstance(text, str):
            raise DataError(f"{record.where}: board must hold the board's text, got {text!r}")
        try:
            best = solve(parse_board(text))
        except BoardError as error:
            raise DataError(f"{record.where}: {error}") from error
        row = dict(record.values)
        stated = row.get("moves")
        row["moves"] = None if best is None else len(best.moves)
        row["solution"] = None if best is None else [str(move) for move in best.moves]
        if stated is not None and stated != row["moves"]:
            row["moves_in_file"] = stated
        yield record.where, row


def _solve(options: argparse.Namespace) -> int:
    status = 0
    for where, row in solved_rows(options.file):
        print(json.dumps(row, ensure_ascii=False), flush=True)
        if "moves_in_file" in row:
            print(
                f"{where}: the optimum is {row['moves']}, not {row['moves_in_file']}",
                file=sys.stderr,
            )
            status = 1
    return status


def _generate(options: argparse.Namespace) -> int:
    for size in options.size:
        recipe = Recipe(
            size=size,
            count=options.count,
            seed=options.seed,
            walls=options.walls,
            medium_from=options.medium_from,
            hard_from=options.hard_from,
        )
        for row in generate(recipe):
            print(json.dumps(row), flush=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    doors = parser.add_subparsers(dest="door", required=True)
    solving = doors.add_parser(
        "solve", help="print every board with its optimum and smallest solution"
    )
    solving.add_argument("file", type=filled, help="JSONL, CSV or Parquet with a column board")
    making = doors.add_parser(
        "generate", help="print a seeded set, balanced over easy, medium and hard"
    )
    default = Recipe()
    making.add_argument(
        "--size", type=int, nargs="+", default=[default.size], help="cells per side"
    )
    making.add_argument("--count", type=int, default=default.count, help="boards of each size")
    making.add_argument("--seed", type=int, default=default.seed)
    making.add_argument("--walls", type=int, default=default.walls, help="walls per board, at most")
    making.add_argument("--medium-from", type=int, default=default.medium_from, help="moves")
    making.add_argument("--hard-from", type=int, default=default.hard_from, help="moves")
    return parser


def main() -> int:
    """Run one door; status 1 when a stated optimum is wrong, 2 with one sentence for bad input."""
    options = _parser().parse_args()
    door = _solve if options.door == "solve" else _generate
    return ended(lambda: door(options))


if __name__ == "__main__":
    sys.exit(main())
