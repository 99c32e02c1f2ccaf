"""Lists the tasks: `python launch/tasks.py`, or `... legacy` for the presets of earlier projects.

One line for each option of `task=`: how many examples it holds where the data set ships with the
task, how an answer is judged, where the data comes from, and what it asks.
"""

import argparse
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launch.config.command_line import ended
from launch.config.compose import compose_task

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


def table(rows: list[tuple[str, ...]]) -> str:
    """The rows under a header, in columns."""
    lines = [HEADER, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    padded = (
        [cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines
    )
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", default="", choices=["", "legacy"])
    folder = parser.parse_args().folder
    return ended(lambda: print(table(list(listed(folder)))))


if __name__ == "__main__":
    sys.exit(main())
