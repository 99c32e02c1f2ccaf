"""A sweep from its overrides to its last row: compose, pack, plan or send, watch, table, status."""

import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hydra.types import HydraContext
from omegaconf import DictConfig
from rich.console import Console

from components.ranks.place import place
from launch.config.cluster import check_cluster
from launch.config.interrupts import INTERRUPTED
from launch.running.dry_run import PlannedPoint, show_dry_run
from launch.running.here import run_ready
from launch.running.outputs import write_outputs
from launch.running.text_output import refuse_one_file_for_several
from launch.sweeps.job import Job
from launch.sweeps.listing import write_listing
from launch.sweeps.manifest import lines_of
from launch.sweeps.packs import by_load, pack, succession, swept
from launch.sweeps.plan import arrays, print_plan, split
from launch.sweeps.points import Composer, PointBuilder, SweepPoint, missing_rows
from launch.sweeps.submit import QueueError, array_limit, submit
from launch.sweeps.submitted_jobs import SubmittedJob, Watch, already_queued, note
from pipeline.protocols import BackendLostError
from pipeline.spec import SpecError, require
from pipeline.store.files import StoreError

MARK = "runs_points"


def of_points(task_function: Callable[[DictConfig], None]) -> Callable[[DictConfig], None]:
    """Mark a Hydra application whose sweeps are points, for the launcher."""
    setattr(task_function, MARK, True)
    return task_function


@dataclass(slots=True)
class Sweep:
    """The points of a sweep and where they run."""

    composer: Composer
    folder: Path  # of the sweep itself, not of a point
    options: dict[str, Any]
    members: list[SweepPoint] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)  # a point's name: why
    builder: PointBuilder = field(default_factory=PointBuilder)

    def add(self, overrides: Sequence[str]) -> None:
        """Compose a point and look at what it has. Raises SpecError."""
        setup = self.composer.setup(overrides)
        lines = lines_of(setup, overrides)
        setups = [setup] if lines is None else map(self.composer.setup, lines)
        self.members += map(self.builder.sweep_point, setups)
        refuse_one_file_for_several([member.setup.spec for member in self.members])

    def name_swept_keys(self) -> None:
        """Tell every point which keys the sweep varies, now that all points are known."""
        keys = swept([member.setup for member in self.members])
        for member in self.members:
            member.setup = replace(member.setup, swept_keys=keys)
            if member.point is not None:
                member.point = replace(member.point, swept=member.setup.swept)

    def packs(self) -> list[list[SweepPoint]]:
        """The points that have something left to do and whose checkpoint is there, by job."""
        left = [[m for m in pack_ if m.point and m.missing] for pack_ in pack(self.members)]
        return [pack_ for pack_ in left if pack_]

    def jobs(self, pack_: Sequence[SweepPoint]) -> list[Job]:
        """The jobs of one pack: one, or as many as its shards need."""
        setups = [member.setup for member in pack_]
        shards = setups[0].spec.run.shards
        tasks = self.tasks
        require(
            shards == 1 or shards % tasks == 0,
            "run.shards",
            f"be a multiple of the job's tasks, {tasks}",
            shards,
        )
        count = math.ceil(shards / tasks) if shards > 1 else 1
        return [Job(setups, index * tasks, self.options["node_cache"]) for index in range(count)]

    @property
    def tasks(self) -> int:
        """Processes in one job."""
        return int(self.options["nodes"] * self.options["tasks_per_node"])


def run_sweep(
    context: HydraContext,
    config: DictConfig,
    points: Sequence[Sequence[str]],
    options: dict[str, Any],
) -> int:
    """Run the points of a sweep. Returns the exit status: 0 only if every row is there.

    Raises:
        SpecError: a point or an option breaks a rule, or the queue cannot be asked.
    """
    rule = "be left out on several ranks: give one point, or send the sweep to a cluster"
    require(place().world == 1 or "RANK" not in os.environ, "-m", rule, place())
    check_cluster(options)
    sweep = Sweep(Composer(context, config), Path(config.hydra.sweep.dir), options)
    for overrides in points:
        sweep.add(overrides)
    sweep.name_swept_keys()
    try:
        return _go(sweep)
    except QueueError as error:
        raise SpecError(f"the queue cannot be asked about the jobs: {error}") from error


def _go(sweep: Sweep) -> int:
    packs = sweep.packs()
    if any(member.setup.spec.run.dry for member in sweep.members):
        _show_dry(sweep, packs)
        return 0
    if sweep.members[0].setup.spec.run.plan:
        print_plan(sweep.members, packs, sweep.options, sum(len(sweep.jobs(p)) for p in packs))
        return 0
    write_listing(sweep.folder, sweep.members)
    if sweep.options["where"] == "here":
        status = _run_here(sweep, packs)
    else:
        status = _send_and_follow(sweep, packs)
    if status is not None:
        return status
    for member in sweep.members:
        member.missing = missing_rows(member.point) if member.point else 0
        if member.point and not member.missing:
            write_outputs(member.point)
    from launch.sweeps.point_table import print_points  # pandas, which composing spares

    return print_points(sweep.members, sweep.failures)


def _show_dry(sweep: Sweep, packs: Sequence[Sequence[SweepPoint]]) -> None:
    """Show what the sweep would ask. Raises SpecError if it would be refused."""
    for member in sweep.members:
        if member.problem:
            print(f"no checkpoint: {member.problem}")
    planned = [
        PlannedPoint(member.point, sweep.builder.backends[member.setup.load_key], member.missing)
        for member in sweep.members
        if member.point
    ]
    if planned:
        show_dry_run(planned)
    jobs = sum(len(sweep.jobs(pack_)) for pack_ in packs)
    for line in arrays(jobs, sweep.options) if jobs else []:
        print(line)


def _run_here(sweep: Sweep, packs: Sequence[Sequence[SweepPoint]]) -> int | None:
    """One load after the other in this process; a failing one does not stop the next."""
    members = [member for pack_ in packs for member in pack_]
    of_setup = {id(member.setup): member for member in members}
    apart = [loads for pack_ in packs for loads in by_load([member.setup for member in pack_])]
    for backend, setups in succession(apart):
        pack_ = [of_setup[id(setup)] for setup in setups]
        points = [member.point for member in pack_ if member.point]
        try:
            outcome = run_ready(points, backend, [setup.config_text for setup in setups])
        except (SpecError, StoreError, BackendLostError) as error:
            for member in pack_:
                sweep.failures[member.name] = str(error)
            continue
        for session in outcome.sessions:
            if session.failures:
                name = next(m.name for m in pack_ if m.point is session.point)
                first = session.failures[0]
                sweep.failures[name] = f"{type(first).__name__}: {first}"
        if outcome.signals:
            return INTERRUPTED
    return None


def _send_and_follow(sweep: Sweep, packs: Sequence[list[SweepPoint]]) -> int | None:
    watch = Watch(sweep.options["poll_seconds"])
    if sweep.options["where"] == "slurm":
        watch.jobs += already_queued(sweep.members)
        busy = {id(m) for job in watch.jobs for m in job.members}
        packs = [p for p in ([m for m in pack_ if id(m) not in busy] for pack_ in packs) if p]
    waiting = [(pack_, job) for pack_ in packs for job in sweep.jobs(pack_)]
    awaited = [
        m for m in sweep.members if not m.point and m.setup.spec.run.missing_checkpoint == "wait"
    ]
    try:
        return _follow(sweep, watch, waiting, awaited)
    except KeyboardInterrupt:
        _leave(watch)
        return INTERRUPTED


Waiting = list[tuple[list[SweepPoint], Job]]


def _follow(sweep: Sweep, watch: Watch, waiting: Waiting, awaited: list[SweepPoint]) -> int | None:
    console = Console(stderr=True)
    started, shown = time.monotonic(), ""
    while True:
        _send(sweep, watch, waiting, console)
        if not sweep.options["follow"]:
            return 0
        watch.look()
        if watch.counts() != shown:
            shown = watch.counts()
            console.print(f"jobs: {shown}", markup=False, highlight=False)
        if not watch.alive and not waiting and not awaited:
            break
        watch.wait()
        _await(sweep, waiting, awaited, time.monotonic() - started)
    watch.wait_for_accounting()
    for job in watch.jobs:
        why = job.failure()
        for member in job.members:
            member.job = job.id
            if why:
                sweep.failures.setdefault(member.name, why)
    return None


def _send(sweep: Sweep, watch: Watch, waiting: Waiting, console: Console) -> None:
    """Submit what waits: to Slurm all of it, in arrays; as processes as many as may run."""
    options = sweep.options
    if options["where"] == "processes":
        room = max(0, options["array_parallelism"] - len(watch.alive))
        sizes = [1] * min(room, len(waiting))
    else:
        sizes = split(len(waiting), array_limit(options)) if waiting else []
    for size in sizes:
        batch, waiting[:] = waiting[:size], waiting[size:]
        jobs = submit([job for _, job in batch], options)
        local = options["where"] == "processes"
        submitted = [
            SubmittedJob(
                job.job_id,
                list(pack_),
                options["folder"],
                sweep.tasks,
                job if local else None,
                "RUNNING" if local else "PENDING",
            )
            for job, (pack_, _) in zip(jobs, batch, strict=True)
        ]
        watch.jobs += submitted
        if not local:
            note(submitted)
            ids = submitted[0].id.partition("_")[0]
            console.print(f"submitted {len(submitted)} jobs as {ids}", highlight=False)


def _await(sweep: Sweep, waiting: Waiting, awaited: list[SweepPoint], seconds: float) -> None:
    """Look for checkpoints that were not there; those that have come make jobs."""
    for member in list(awaited):
        now = sweep.builder.sweep_point(member.setup)
        late = seconds > 60 * member.setup.spec.run.missing_minutes
        if now.point is None and not late:
            continue
        awaited.remove(member)
        if now.point is not None:
            member.point = replace(now.point, swept=member.setup.swept)
            member.missing, member.problem = now.missing, ""
            waiting += [([member], job) for job in sweep.jobs([member])]


def _leave(watch: Watch) -> None:
    """The person went: processes end with what is whole on disk, Slurm's jobs go on."""
    for job in watch.alive:
        if job.local is not None:
            job.local._process.send_signal(signal.SIGTERM)
    for job in watch.alive:
        if job.local is not None:
            job.local._process.wait()
    ids = sorted({f.id.partition("_")[0] for f in watch.alive if f.local is None})
    if ids:
        words = " ".join(ids)
        print(f"jobs {words} go on: the same command follows them, scancel {words} ends them")
