"""Lists the tasks: `python launch/tasks.py`, `... judge` those by which a model judges answers.

`... legacy` lists the presets of earlier projects.

One line for each option of `task=`: how many examples it holds where the data set ships with the
task, how an answer is judged, where the data comes from, and what it asks.
"""

from launch.config.interrupts import guard

if __name__ == "__main__":
    guard()  # before libraries load

import argparse
import inspect
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from launch.config.command_line import ended
from launch.config.compose import compose_task
from launch.running.console import table_console

CONF = Path(__file__).parents[1] / "conf" / "task"
HEADER = ("task", "examples", "judged by", "data", "what it asks")


def listed(folder: str = "") -> Iterator[tuple[str, ...]]:
    """A line for each YAML of `conf/task/<folder>`, by name."""
    for path in sorted((CONF / folder).glob("*.yaml")):
        name = f"{folder}/{path.stem}" if folder else path.stem
        task: Any = compose_task([f"task={name}"])
        yield name, _size(task), _judge(task), _source(task), _sentence(path, task)


def _size(task: Any) -> str:
    embedded = task.source.path is None and task.source.hub is None
    return str(len(task.examples())) if embedded else "-"


def _judge(task: Any) -> str:
    grader = getattr(task, "grader", None)
    if grader is not None:
        return str(grader)
    return str(task.JUDGE)


def _source(task: Any) -> str:
    where = task.source
    if where.path is None and where.hub is None:
        return "embedded"
    if where.path is not None:
        return str(where.path)
    hub = where.hub if isinstance(where.hub, str) else where.hub[0]
    return f"{hub} [{where.split}]"


def _sentence(path: Path, task: Any) -> str:
    """The comment that opens the YAML, else the first sentence of the task's module."""
    first = path.read_text("utf-8").splitlines()[0]
    if first.startswith("# "):
        return first[2:]
    module = inspect.getdoc(inspect.getmodule(type(task))) or ""
    return module.splitlines()[0]


def table(rows: Iterable[tuple[str, ...]]) -> Table:
    """The rows under a header, in columns that are folded to the width of a line."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, name in enumerate(HEADER):
        made.add_column(name, overflow="fold", no_wrap=number == 0)
    for row in rows:
        made.add_row(*map(escape, row))
    return made


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", default="", choices=["", "judge", "legacy"])
    folder = parser.parse_args().folder
    return ended(lambda: table_console().print(table(listed(folder))))


if __name__ == "__main__":
    sys.exit(main())
