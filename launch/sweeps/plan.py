"""`run.plan=true`: the jobs of a sweep before there are any, and what they may cost."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from launch.running.console import table_console
from launch.sweeps.points import SweepPoint, rows_of
from launch.sweeps.submit import array_limit, test_only
from pipeline.store.stored_record import attempts_of, read_record


@dataclass(slots=True)
class Pace:
    """What earlier attempts of a model on a backend took."""

    rows: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def hours(self, rows: int) -> float | None:
        """Hours that one process needs for so many rows; None when nothing was measured."""
        if not self.rows or not self.tokens or not self.seconds:
            return None
        per_second = self.tokens / self.seconds
        return rows * (self.tokens / self.rows) / per_second / 3600


def print_plan(
    members: Sequence[SweepPoint],
    packs: Sequence[Sequence[SweepPoint]],
    options: dict[str, Any],
    jobs: int,
) -> None:
    """Print jobs, arrays, GPU hours and what is already done; ask Slurm if it would take them."""
    paces = measured(Path(members[0].setup.spec.run.root))
    console = table_console()
    table = Table(title=f"{len(packs)} packs in {jobs} jobs; nothing is submitted")
    for name in ("pack", "points", "rows there", "jobs", "GPU hours"):
        table.add_column(name, overflow="fold")
    total, unknown = 0.0, 0
    for number, pack_ in enumerate(packs):
        spec = pack_[0].setup.spec
        pace = paces.get(pace_key(spec.model.name, spec.backend), Pace())
        hours = pace.hours(sum(member.missing for member in pack_))
        total, unknown = total + (hours or 0) * devices(options), unknown + (hours is None)
        cost = "not measured" if hours is None else f"{hours * devices(options):.2f}"
        names = "\n".join(member.name for member in pack_)
        there = "\n".join(rows_of(member) for member in pack_)
        table.add_row(str(number), names, there, str(max(1, spec.run.shards)), cost)
    console.print(table)
    say = functools.partial(console.print, markup=False, highlight=False, soft_wrap=True)
    done = [m for m in members if m.point and not m.missing]
    say(f"{len(done)} of {len(members)} points are complete and not submitted again")
    for member in members:
        if member.problem:
            say(f"no checkpoint: {member.problem}")
    rest = f"; {unknown} packs are not measured yet" if unknown else ""
    say(f"{total:.2f} GPU hours at the tokens/s of earlier attempts{rest}")
    for line in arrays(jobs, options):
        say(line)


def arrays(jobs: int, options: dict[str, Any]) -> list[str]:
    """One line per array: its size, and what Slurm says to it. Raises SpecError if it refuses."""
    if options["where"] != "slurm":
        return []
    limit = array_limit(options)
    sizes = split(jobs, limit)
    parallel = options["array_parallelism"]
    lines = []
    for number, size in enumerate(sizes):
        said = test_only(size, options)
        lines.append(f"array {number}: {size} jobs, {min(size, parallel)} at once: {said}")
    return [f"{jobs} jobs in {len(sizes)} arrays (the site takes {limit} in one)", *lines]


def split(jobs: int, limit: int) -> list[int]:
    """Sizes of as few arrays as the limit allows, about equal."""
    count = math.ceil(jobs / limit)
    return [len(range(index, jobs, count)) for index in range(count)]


def devices(options: dict[str, Any]) -> float:
    """GPUs that one process of a job holds; 1 where none are asked for."""
    tasks = int(options["tasks_per_node"])
    return float(options["gpus_per_task"] or (options["gpus_per_node"] or tasks) / tasks)


def measured(root: Path) -> dict[str, Pace]:
    """What all attempts below `root` took, by model and backend."""
    found: dict[str, Pace] = {}
    for path in root.rglob("run.json"):
        spec = read_record(path, "spec")["spec"]
        pace = found.setdefault(pace_key(spec["model"]["name"], spec["backend"]), Pace())
        for attempt in attempts_of(path.parent):
            pace.rows += attempt["rows"]
            pace.tokens += attempt["tokens"]
            pace.seconds += attempt["seconds"]
    return found


def pace_key(model: str, backend: dict[str, Any]) -> str:
    """Attempts with the same one are about equally fast."""
    return f"{model} {backend.get('_target_')}"
