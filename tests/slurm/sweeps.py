"""Sweeps of the real command line, their jobs in the queue, and what can befall these."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fakes.configs import ROOT
from tests.run.test_executor import stable

Lines = list[str]
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
OWN, LOW, HIGH = (f"{name}{WORKER}" for name in ("own", "low", "high"))  # of cluster.sh
ECHO = ("task=crossword", "backend=echo", "cue=wait", "sampling.num_samples=2", "run.limit=12")
SLOW = ("backend.capacity=2", "backend.seconds_per_token=0.004")  # some 20 s
SMOLLM2 = (
    "task=crossword",
    "backend=hf",
    "quantization=fp32",
    "cue=wait",
    "backend.batch_size=2",
    "run.limit=6",
    "sampling.think_cap=24",
    "sampling.answer_cap=8",
)
LINES = {"echo": (*ECHO, *SLOW), "smollm2": SMOLLM2}


class Sweep:
    """One launch of a sweep, as a process."""

    def __init__(self, name: str, root: Path, *overrides: str, **env: str) -> None:
        self.name, self.root = name, root
        self.log = root / f"launch-{time.monotonic_ns()}.txt"
        root.mkdir(parents=True, exist_ok=True)
        options = [f"hydra.launcher.name={name}", "hydra.launcher.poll_seconds=2"]
        place = [] if any(o.startswith("cluster=") for o in overrides) else ["cluster=slurm"]
        line = [*overrides, *place, f"run.root={root}", *options]
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "launch/run.py"), *sorted(line, key="-m".__ne__)],
            cwd=ROOT,
            env=os.environ | {"COLUMNS": "200", "PYTHONPATH": str(ROOT)} | env,
            stdout=self.log.open("w"),
            stderr=subprocess.STDOUT,
        )

    def end(self, status: int = 0, seconds: float = 500) -> str:
        """Wait for its end; what it printed."""
        found = self.process.wait(timeout=seconds)
        text = self.log.read_text()
        assert found == status, text
        return text

    def job(self, state: str = "RUNNING") -> str:
        """The id of its only job, once that is in the state."""
        return until(lambda: next(iter(self.jobs(state)), None), f"a {state} job of {self.name}")

    def jobs(self, *states: str) -> Lines:
        """Ids of its jobs in the queue."""
        shown = ask("squeue", "-h", "-r", "-n", self.name, "-o", "%i %T").splitlines()
        found = [line.split() for line in shown]
        return [name for name, state in found if not states or state in states]


def ask(*command: str) -> str:
    """What a command prints."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def until(found: Callable[[], Any], what: str, seconds: float = 300) -> Any:
    """Ask again and again for something that is true."""
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline, f"{what} did not come in {seconds} s"
        time.sleep(0.2)
    return value


def agree(found: dict[str, Lines], expected: dict[str, Lines], exact: bool = True) -> bool:
    """Whether the rows of every point are the same; not `exact`: numbers but for float32's noise.

    Ids, texts and verdicts are equal in any case.
    """
    if exact:
        return found == expected
    rows = [{k: [json.loads(x) for x in v] for k, v in some.items()} for some in (found, expected)]
    return close(*rows)


def close(value: Any, other: Any) -> bool:
    """Equal, floats within 1e-4: what is left of a batch after a restart adds up otherwise."""
    if isinstance(value, float) and isinstance(other, float):
        return abs(value - other) <= 1e-4
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(close(value[k], other[k]) for k in value)
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(close, value, other))
    return bool(value == other)


def lines_in(root: Path) -> dict[str, Lines]:
    """Every row of every point as text, without what differs between attempts, by point."""
    found = {}
    for path in sorted(root.rglob("step*.jsonl")):
        rows = [json.loads(line) for line in path.open(encoding="utf-8")]
        name = str(path.parent.relative_to(root))
        found.setdefault(name, []).extend(json.dumps(stable(row)) for row in rows)
    return found


def wait_for_rows(root: Path, count: int) -> None:
    def there() -> bool:
        files = list(root.rglob("step*.jsonl"))
        return sum(file.read_bytes().count(b"\n") for file in files) >= count

    until(there, f"{count} rows in {root}")


def wait_for_work(root: Path) -> None:
    """Until something is generated: rows of one batch end together, and then it may be late."""

    def there() -> bool:
        files = [*root.rglob("step*.jsonl"), *root.rglob("journal-*.jsonl")]
        return any(file.stat().st_size for file in files)

    until(there, f"a generation in {root}")


def pids_of(job: str) -> dict[int, str]:
    """Processes of a job on this machine, with their command lines."""
    raw = ask("squeue", "-h", "-r", "-j", job, "-o", "%A").split()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            mark = f"SLURM_JOB_ID={raw[0]}\0".encode()
            if mark in (folder / "environ").read_bytes():
                found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
        except (OSError, IndexError):
            continue
    return found


def tasks_of(job: str) -> list[int]:
    """The Python processes of a job."""
    return [
        pid
        for pid, line in pids_of(job).items()
        if "submitit.core._submit" in line and "srun" not in line and "slurm_script" not in line
    ]


def kill_node_of(job: str) -> str:
    """The node that runs a job loses power: its daemon, the job's steps and tasks. Its name."""
    node = ask("squeue", "-h", "-j", job, "-o", "%N")
    daemon = Path(f"/var/lib/rethink-slurm/run/slurmd.{node}.pid")
    steps = [
        int(folder.name)
        for folder in Path("/proc").glob("[0-9]*")
        if f"slurmstepd: [{job}." in _line(folder)
    ]
    for pid in [int(daemon.read_text()), *steps, *pids_of(job)]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return node


def _line(folder: Path) -> str:
    try:
        return (folder / "cmdline").read_text()
    except OSError:
        return ""


def revive(node: str) -> None:
    """Start a node's daemon again and wait until the node takes jobs."""
    daemon = [str(Path(__file__).with_name("cluster.sh")), "node", node.removeprefix("node")]
    subprocess.run(daemon, check=True)
    until(lambda: ask("sinfo", "-h", "-n", node, "-p", OWN, "-t", "idle,mix", "-o", "%N"), node)
