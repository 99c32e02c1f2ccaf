"""Jobs under way: which points they run, how they stand, and how they ended."""

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from submitit.core import utils

from launch.sweeps.points import Member
from launch.sweeps.submit import PENDING, RUNNING, QueueError, slurm_states
from pipeline.spec import SpecError
from pipeline.store.files import write_atomically

ALIVE = PENDING | RUNNING
NOTE = ".job"  # in a point's folder: the jobs that were submitted for it
PATIENCE = 600.0  # seconds without an answer of the queue before giving up on watching


@dataclass(slots=True)
class Flight:
    """One submitted job."""

    id: str
    members: list[Member]
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
    """Looks at flights, more and more rarely, at the latest every `poll_seconds`."""

    poll_seconds: float
    flights: list[Flight] = field(default_factory=list)
    _pause: float = 0.5
    _unanswered: float | None = None

    def look(self) -> None:
        """Bring the states up to date. Raises QueueError after long silence of the queue."""
        for flight in self.flights:
            if flight.local is not None:
                flight.state = flight.local.get_info()["jobState"]
        ids = [flight.id for flight in self.flights if flight.alive and flight.local is None]
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
        for flight in self.flights:
            flight.state = states.get(flight.id, flight.state)

    def settle(self, seconds: float = 10.0) -> None:
        """Give accounting, which lags, some time to say how jobs ended."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            gone = [flight for flight in self.flights if flight.state == "GONE"]
            if not gone:
                return
            time.sleep(1.0)
            try:
                states = slurm_states([flight.id for flight in gone])
            except QueueError:
                return
            for flight in gone:
                flight.state = states[flight.id]

    def wait(self) -> None:
        """Pause until the next look."""
        time.sleep(self._pause)
        self._pause = min(self._pause * 1.5, self.poll_seconds)

    @property
    def alive(self) -> list[Flight]:
        """Flights that have not ended."""
        return [flight for flight in self.flights if flight.alive]

    def counts(self) -> str:
        """One line: how many jobs are in which state."""
        states = Counter(flight.state.lower() for flight in self.flights)
        return ", ".join(f"{count} {state}" for state, count in sorted(states.items()))


def note(flights: Sequence[Flight]) -> None:
    """Leave the ids of the jobs in the folders of their points, so that none is sent twice."""
    jobs: dict[Path, list[dict[str, Any]]] = {}
    for flight in flights:
        for member in flight.members:
            assert member.point is not None
            folder = member.point.folder
            about = {"id": flight.id, "folder": flight.folder, "tasks": flight.tasks}
            jobs.setdefault(folder, []).append(about)
    for folder, about_them in jobs.items():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / NOTE, [json.dumps(about_them).encode()])


def already_queued(members: Sequence[Member]) -> list[Flight]:
    """Flights of an earlier launch that still queue or run for these points."""
    found: dict[str, Flight] = {}
    for member in members:
        path = member.point.folder / NOTE if member.point else None
        if path is None or not path.exists():
            continue
        for about in json.loads(path.read_text(encoding="utf-8")):
            flight = Flight(about["id"], [], about["folder"], about["tasks"])
            found.setdefault(flight.id, flight).members.append(member)
    if not found:
        return []
    try:
        states = slurm_states(list(found))
    except QueueError as error:
        raise SpecError(f"the queue cannot be asked about earlier jobs: {error}") from error
    for flight in found.values():
        flight.state = states[flight.id]
    return [flight for flight in found.values() if flight.alive]
