"""Jobs under way: which points they run, how they stand, and how they ended."""

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from submitit.core import utils

from launch.sweeps.points import SweepPoint
from launch.sweeps.submit import PENDING, RUNNING, QueueError, slurm_states
from pipeline.spec import SpecError
from pipeline.store.files import write_atomically

ALIVE = PENDING | RUNNING
NOTE = ".job"  # in a point's folder: the jobs that were submitted for it
PATIENCE = 600.0  # seconds without an answer of the queue before giving up on watching


@dataclass(slots=True)
class SubmittedJob:
    """One submitted job."""

    id: str
    members: list[SweepPoint]
    folder: str  # submitit's, with %j
    tasks: int = 1
    local: Any = None  # submitit's job, where it is a process of ours
    state: str = "PENDING"

    @property
    def alive(self) -> bool:
        """Whether it may still do something."""
        return self.state in ALIVE

    def log(self, task: int = 0) -> Path:
        """Where a task's errors are."""
        return Path(utils.JobPaths(self.folder, self.id, task).stderr)

    def failure(self) -> str:
        """Why it did not end well: the error of any of its tasks, else its state; empty if well."""
        for task in range(self.tasks):
            path = utils.JobPaths(self.folder, self.id, task).result_pickle
            if path.exists():
                kind, value = utils.pickle_load(path)
                if kind == "error":
                    last = str(value).strip().splitlines()[-1]
                    return f"{last} (log: {self.log(task)})"
        if self.state in ("COMPLETED", "FINISHED", "GONE"):
            return ""
        return f"job {self.id} ended {self.state} (log: {self.log()})"


@dataclass(slots=True)
class Watch:
    """Looks at submitted jobs, more and more rarely, at the latest every `poll_seconds`."""

    poll_seconds: float
    jobs: list[SubmittedJob] = field(default_factory=list)
    _pause: float = 0.5
    _unanswered: float | None = None

    def look(self) -> None:
        """Bring the states up to date. Raises QueueError after long silence of the queue."""
        for job in self.jobs:
            if job.local is not None:
                job.state = job.local.get_info()["jobState"]
        ids = [job.id for job in self.jobs if job.alive and job.local is None]
        if not ids:
            return
        try:
            states = slurm_states(ids)
        except QueueError as error:
            now = time.monotonic()
            self._unanswered = self._unanswered or now
            if now - self._unanswered > PATIENCE:
                raise QueueError(f"the queue has not answered for {PATIENCE:.0f} s") from error
            return
        self._unanswered = None
        for job in self.jobs:
            job.state = states.get(job.id, job.state)

    def wait_for_accounting(self, seconds: float = 10.0) -> None:
        """Give accounting, which lags, some time to say how jobs ended."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            gone = [job for job in self.jobs if job.state == "GONE"]
            if not gone:
                return
            time.sleep(1.0)
            try:
                states = slurm_states([job.id for job in gone])
            except QueueError:
                return
            for job in gone:
                job.state = states[job.id]

    def wait(self) -> None:
        """Pause until the next look."""
        time.sleep(self._pause)
        self._pause = min(self._pause * 1.5, self.poll_seconds)

    @property
    def alive(self) -> list[SubmittedJob]:
        """Jobs that have not ended."""
        return [job for job in self.jobs if job.alive]

    def counts(self) -> str:
        """One line: how many jobs are in which state."""
        states = Counter(job.state.lower() for job in self.jobs)
        return ", ".join(f"{count} {state}" for state, count in sorted(states.items()))


def note(submitted: Sequence[SubmittedJob]) -> None:
    """Leave the ids of the jobs in the folders of their points, so that none is sent twice."""
    jobs: dict[Path, list[dict[str, Any]]] = {}
    for job in submitted:
        for member in job.members:
            assert member.point is not None
            folder = member.point.folder
            about = {"id": job.id, "folder": job.folder, "tasks": job.tasks}
            jobs.setdefault(folder, []).append(about)
    for folder, about_them in jobs.items():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / NOTE, [json.dumps(about_them).encode()])


def already_queued(members: Sequence[SweepPoint]) -> list[SubmittedJob]:
    """Jobs of an earlier launch that still queue or run for these points."""
    found: dict[str, SubmittedJob] = {}
    for member in members:
        path = member.point.folder / NOTE if member.point else None
        if path is None or not path.exists():
            continue
        for about in json.loads(path.read_text(encoding="utf-8")):
            job = SubmittedJob(about["id"], [], about["folder"], about["tasks"])
            found.setdefault(job.id, job).members.append(member)
    if not found:
        return []
    try:
        states = slurm_states(list(found))
    except QueueError as error:
        raise SpecError(f"the queue cannot be asked about earlier jobs: {error}") from error
    for job in found.values():
        job.state = states[job.id]
    return [job for job in found.values() if job.alive]
