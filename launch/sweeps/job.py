"""What runs in a job: the points of a pack, or one shard of them; what a signal does there."""

import getpass
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import submitit

from launch.config.compose import build_backend, build_point
from launch.config.setup import RunSetup
from launch.running.here import PointsOutcome, follow_rank_0, run_ready
from launch.sweeps.packs import by_load, succession
from pipeline.store.environment import job_id

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)


class PointsFailed(RuntimeError):
    """Rows of a job's points could not be made; the job fails."""


@dataclass(slots=True)
class Job:
    """A pack of points for one job. With shards, its processes are those from `first` on."""

    setups: list[RunSetup]
    first: int = 0
    node_cache: str | None = None

    def __call__(self) -> str:
        """Run; called by submitit in every task of the job. Returns what to say of it.

        Raises:
            PointsFailed: from the first trace's error.
        """
        environment = submitit.JobEnvironment()
        rank, shards = environment.global_rank, self.setups[0].spec.run.shards
        if self.node_cache:
            use_node_cache(Path(self.node_cache))
        if shards > 1:
            take_one_device(environment.local_rank)
        requeue = signal.getsignal(signal.SIGUSR2)
        outcome = self._run(self.first + rank) if shards > 1 or rank == 0 else self._follow()
        if outcome.signals and outcome.status:
            stopped(outcome, rank, requeue)
        failed = [(s, error) for s in outcome.sessions for error in s.failures]
        if failed:
            folders, first = (
                ", ".join(sorted({str(s.point.folder) for s, _ in failed})),
                failed[0][1],
            )
            said = f"{type(first).__name__}: {first}"
            raise PointsFailed(f"{len(failed)} traces failed in {folders}: {said}") from first
        return f"exit status {outcome.status}"

    def _run(self, shard: int) -> PointsOutcome:
        outcome = PointsOutcome()
        loads = by_load([as_shard(setup, shard) for setup in self.setups])
        for backend, setups in succession(loads):
            made = [(d, build_point(d.spec, backend, d.overrides, d.choices)) for d in setups]
            points = [replace(point, swept=setup.swept) for setup, point in made]
            part = run_ready(points, backend, [d.config_text for d in setups], SIGNALS)
            outcome.sessions += part.sessions
            outcome.signals |= part.signals
            if part.signals:
                break
        return outcome

    def _follow(self) -> PointsOutcome:
        """What a rank above 0 of a multi-process engine does."""
        spec = self.setups[0].spec
        follow_rank_0(build_backend(spec), spec.run.shards, SIGNALS)
        return PointsOutcome()

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """The same again: what is done is in the run folders."""
        return submitit.helpers.DelayedSubmission(self)


def as_shard(setup: RunSetup, shard: int) -> RunSetup:
    """The setup as this process runs it: beside other writers it waits rather than refuses."""
    run = setup.spec.run
    mine = replace(run, wait=True, shard=shard if run.shards > 1 else None)
    return replace(setup, spec=replace(setup.spec, run=mine))


def stopped(outcome: PointsOutcome, rank: int, requeue: Any) -> None:
    """Everything whole is on disk: go back into the queue, or end with the status.

    `requeue` is submitit's handler of USR2, which counts time-outs and requeues under the same id.
    """
    if signal.SIGUSR2 in outcome.signals or is_being_preempted():
        if rank == 0 and isinstance(requeue, Callable):  # type: ignore[arg-type]
            requeue(signal.SIGUSR2, None)
        time.sleep(60)  # rank 0 requeues the job, which ends this process
    sys.exit(outcome.status)


def is_being_preempted() -> bool:
    """Whether Slurm is about to take the nodes away, rather than somebody cancelling the job."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return False
    command = ["scontrol", "show", "job", "-o", job]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return re.search(r"\bPreemptTime=\d", done.stdout) is not None


def take_one_device(local_rank: int) -> None:
    """One device of those this task sees, by its rank on the node; before CUDA starts."""
    devices = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    if len(devices) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices[local_rank % len(devices)]


def use_node_cache(folder: Path) -> None:
    """Caches on the node's own disk: compiled kernels per job, the hub's files for all jobs."""
    mine = folder / f"rethink-{getpass.getuser()}"
    job = mine / (job_id() or str(os.getpid()))
    os.environ["TRITON_CACHE_DIR"] = str(job / "triton")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(job / "inductor")
    os.environ["HF_HUB_CACHE"] = str(mine / "hub")
    for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "HF_HUB_CACHE"):
        Path(os.environ[name]).mkdir(parents=True, exist_ok=True)
