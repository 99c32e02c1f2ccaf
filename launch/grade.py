"""Asks a task's grader: `python launch/grade.py task=math pairs=FILE.jsonl`.

Every line of the file holds `gold` and `pred`; every line printed holds `equal`, `reason`,
`seconds` and `limit` (null, or the limit that ended the comparison: timeout, memory, crash).
Further columns of a line (a `board`, `choices`) are the task's to use; `task.*` overrides work as
for a run.
"""

from launch.config.interrupts import guard

if __name__ == "__main__":
    guard()  # before libraries load

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from components.data_sets.records import DataError, read_file
from components.grading.verdict import Verdict
from launch.config.command_line import ended
from launch.config.compose import compose_task
from pipeline.spec import SpecError


class Grader(Protocol):
    """A task that can judge one pair."""

    def grade(self, gold: Any, pred: str, row: Mapping[str, Any]) -> Verdict:
        """Compare; `row` holds every column of the line."""


def grade_pairs(task: Grader, pairs: str) -> Iterator[dict[str, Any]]:
    """A verdict for every line of a JSONL file, in order; DataError names a bad line."""
    for record in read_file(pairs, "pairs"):
        if record.values.get("gold") is None:
            raise DataError(f"{record.where}: a pair must have gold, got {sorted(record.values)}")
        pred = record.values.get("pred")
        if pred is not None and not isinstance(pred, str):
            raise DataError(f"{record.where}: pred must be text or null, got {pred!r}")
        yield asdict(task.grade(record.values["gold"], pred or "", record.values))


def grader(overrides: Sequence[str]) -> Grader:
    """The task of a command line such as `task=math task.grading_seconds=2`.

    SpecError if it has no grader.
    """
    task: Any = compose_task(overrides)
    if not hasattr(task, "grade"):
        raise SpecError(f"task={task.name} has no gold, so nothing to grade")
    graded: Grader = task
    return graded


def main() -> int:
    """Print one JSON line per pair; status 2 with one sentence when something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "settings", nargs="+", help="task=NAME, pairs=FILE.jsonl, and task.* overrides"
    )
    given = parser.parse_args().settings
    pairs = [setting.removeprefix("pairs=") for setting in given if setting.startswith("pairs=")]
    rest = [setting for setting in given if not setting.startswith("pairs=")]
    if len(pairs) != 1 or not any(setting.startswith("task=") for setting in rest):
        parser.error("give task=NAME and pairs=FILE.jsonl")
    return ended(lambda: print_verdicts(grader(rest), pairs[0]))


def print_verdicts(task: Grader, pairs: str) -> None:
    """One JSON line per pair."""
    for verdict in grade_pairs(task, pairs):
        print(json.dumps(verdict, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    sys.exit(main())
