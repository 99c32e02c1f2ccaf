"""Prints tables of numbers into a terminal, folded to its width."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pandas as pd

from launch.reporting import cells
from launch.reporting.order import in_order, tells_runs
from launch.reporting.plain import plain
from launch.running.console import WIDTH
from pipeline.analysis.table import POINT

KEYS = (*POINT, "pass", "cue", "k", "quartile", "by")


def show(title: str, frame: pd.DataFrame, by: Sequence[str] = (), wide: bool = False) -> None:
    """Print a table without the columns that say nothing, errors beside their values.

    `by` are columns that tell lines apart, beside those of a point. A run's name is shown only
    where nothing else tells it from others. What is wider than `WIDTH` goes on below, its first
    columns repeated, unless `wide`.
    """
    useful = frame.dropna(axis=1, how="all")
    constant = [n for n in ("task", "model", "temperature", "control") if _constant(useful, n)]
    hidden = constant if tells_runs(useful, by) else [*constant, "run"]
    if "run" in hidden:
        useful = in_order(useful, by)
    useful = useful.drop(columns=hidden, errors="ignore")
    if not len(useful):
        return
    keyed = (*KEYS, *by)
    names = [str(name) for name in useful if not cells.is_beside(str(name), useful)]
    names.sort(key=lambda name: name not in keyed)
    lines = list(plain(useful))
    columns = [
        [cells.heading(name), *(_text(cells.cell(line, name)) for line in lines)] for name in names
    ]
    for number, (name, column) in enumerate(zip(names, columns, strict=True)):
        if name == "run":  # once for all its lines
            columns[number] = [t if t != above else "" for above, t in pairwise(["", *column])]
    keys = sum(name in keyed for name in names)
    print(f"\n{title}")
    print("\n\n".join(blocks(columns, keys, None if wide else WIDTH)))


def _text(cell: Any) -> str:
    return "-" if cell is None or cell == "" else str(cell)


def blocks(columns: Sequence[Sequence[str]], keys: int, width: int | None) -> Iterator[str]:
    """Text blocks of a table, each of as many columns as fit `width`, or of all without one.

    A column is its heading and then its cells. The first `keys` of them stand in every block.
    """
    aligned = [_aligned(column, left=number < keys) for number, column in enumerate(columns)]
    rest = aligned[keys:]
    while True:
        block = aligned[:keys]
        while rest and (len(block) == keys or width is None or _width([*block, rest[0]]) <= width):
            block.append(rest.pop(0))
        yield "\n".join("  ".join(line).rstrip() for line in zip(*block, strict=True))
        if not rest:
            return


def _width(columns: Sequence[Sequence[str]]) -> int:
    return sum(len(column[0]) + 2 for column in columns) - 2


def _aligned(column: Sequence[str], left: bool) -> list[str]:
    width = max(map(len, column))
    return [text.ljust(width) if left else text.rjust(width) for text in column]


def _constant(frame: pd.DataFrame, name: str) -> bool:
    return name in frame and frame[name].nunique(dropna=False) == 1
