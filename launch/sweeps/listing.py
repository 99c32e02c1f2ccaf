"""The points of the last sweep of a name, kept in a file: also those that have not begun."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.sweeps.points import SweepPoint
from pipeline.store.files import read_lines, write_atomically

SWEEPS = ".sweeps"  # below run.root, as hydra.sweep.dir has it: a folder for each run.name
LISTING = "points.jsonl"


@dataclass(slots=True)
class Listed:
    """A point that a sweep is about."""

    folder: Path | None  # None: its checkpoint is not there yet
    overrides: list[str]
    rows_wanted: int = 0
    problem: str = ""


def write_listing(sweep_folder: Path, members: Sequence[SweepPoint]) -> None:
    """Keep the points of a sweep, but those that it skips. Folders are relative: trees move."""
    kept = [m for m in members if m.point or m.setup.spec.run.missing_checkpoint == "wait"]
    lines = [json.dumps(_line(sweep_folder, member)).encode() + b"\n" for member in kept]
    write_atomically(sweep_folder / LISTING, lines)


def _line(sweep_folder: Path, member: SweepPoint) -> dict[str, object]:
    about = {"overrides": member.setup.overrides, "problem": member.problem}
    if member.point is None:
        return about | {"folder": None}
    folder = os.path.relpath(member.point.folder, sweep_folder)
    return about | {"folder": folder, "rows_wanted": len(member.point.canonical_order())}


def listed(root: Path) -> Iterator[Listed]:
    """The points of sweeps into a folder, be it `run.root`, or that of a `run.name` below it."""
    for base in (root, *root.parents):
        sweeps = base / SWEEPS / root.relative_to(base)
        for path in sorted(sweeps.rglob(LISTING)):
            for _, row in read_lines(path):
                if row is not None:
                    yield _listed(path.parent, row)


def _listed(sweep_folder: Path, row: dict[str, object]) -> Listed:
    point = Listed(**row)  # type: ignore[arg-type]
    if point.folder is not None:
        point.folder = Path(os.path.normpath(sweep_folder / point.folder))
    return point
