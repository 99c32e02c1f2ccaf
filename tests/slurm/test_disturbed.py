"""Whatever befalls a job, the same command again ends with the rows of an undisturbed run."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.slurm.sweeps import (
    HIGH,
    LINES,
    LOW,
    OWN,
    Sweep,
    agree,
    ask,
    kill_node_of,
    lines_in,
    revive,
    tasks_of,
    until,
    wait_for_work,
)

PLACE = f"hydra.launcher.partition={OWN}"
NAMES = {"echo": "e", "smollm2": "s"}


def usr2(job: str) -> int:
    """The warning before a limit: back into the queue under the same id, and on."""
    ask("scancel", "--signal=USR2", job)
    return 0


def cancel(job: str) -> int:
    ask("scancel", job)
    return 1


def requeue(job: str) -> int:
    ask("scontrol", "requeue", job)
    return 0


def kill(job: str) -> int:
    (task,) = tasks_of(job)
    os.kill(task, signal.SIGKILL)
    return 1


def preempt(job: str) -> int:
    command = ["sbatch", "-p", HIGH, "-N2", "-n2", "-c8", "-o", "/dev/null", "--wrap", "sleep 4"]
    subprocess.run(command, check=True, capture_output=True)
    return 0


def happen(
    root: Path, backend: str, events: Sequence[Callable[[str], int]], *options: str
) -> dict[str, tuple[str, str, str]]:
    """Launch a sweep per event at once, disturb each, launch all again.

    What was printed both times, and the job, by event.
    """
    line = [*LINES[backend], *options, "hydra.launcher.timeout_min=60"]
    sweeps = {e: Sweep(f"{NAMES[backend]}-{e.__name__}", root / e.__name__, *line) for e in events}
    jobs, expected = {}, {}
    for event, sweep in sweeps.items():
        wait_for_work(sweep.root)
        jobs[event] = sweep.job()
        expected[event] = event(jobs[event])
    first = {event: sweep.end(expected[event]) for event, sweep in sweeps.items()}
    again = {event: Sweep(sweep.name, sweep.root, *line) for event, sweep in sweeps.items()}
    return {e.__name__: (first[e], again[e].end(), jobs[e]) for e in events}


def was_requeued(job: str) -> bool:
    """Whether a job ran more than once and ended well, under one id."""
    record = ask("sacct", "-D", "-X", "-n", "-P", "-j", job, "-o", "State").splitlines()
    return len(record) > 1 and record[-1] == "COMPLETED"


@pytest.mark.parametrize("backend", ["echo", "smollm2"])
def test_the_same_command_again_ends_with_the_rows_of_an_undisturbed_run(
    tmp_path: Path, undisturbed: Callable[[str], dict[str, list[str]]], backend: str
) -> None:
    told = happen(tmp_path, backend, (usr2, cancel, requeue, kill), PLACE)
    for name in told:
        rows = lines_in(tmp_path / name)
        assert agree(rows, undisturbed(backend), backend == "echo"), name
    for name in ("usr2", "requeue"):
        first, again, job = told[name]
        assert "done" in first and was_requeued(job)
        assert "submitted" not in again, "a complete point is not submitted again"
    for name, state in (("cancel", "CANCELLED"), ("kill", "FAILED")):
        assert f"ended {state}" in told[name][0] and "submitted 1 jobs" in told[name][1]


@pytest.mark.parametrize("backend", ["echo", "smollm2"])
def test_preemption_by_a_higher_partition_requeues_and_goes_on(
    tmp_path: Path, undisturbed: Callable[[str], dict[str, list[str]]], backend: str
) -> None:
    options = (f"hydra.launcher.partition={LOW}", "hydra.launcher.cpus_per_task=8")
    first, again, job = happen(tmp_path, backend, (preempt,), *options)["preempt"]
    assert was_requeued(job) and "done" in first and "submitted" not in again
    assert agree(lines_in(tmp_path / "preempt"), undisturbed(backend), backend == "echo")


@pytest.mark.parametrize("backend", ["echo", "smollm2"])
def test_the_death_of_a_node_moves_the_job_to_the_other_one(
    tmp_path: Path, undisturbed: Callable[[str], dict[str, list[str]]], backend: str
) -> None:
    sweep = Sweep(f"node-{backend}", tmp_path, *LINES[backend], PLACE)
    wait_for_work(tmp_path)
    job = sweep.job()
    dead = kill_node_of(job)
    try:
        until(
            lambda: ask("squeue", "-h", "-j", job, "-t", "R", "-o", "%N") not in ("", dead),
            "the job on another node",
        )
        sweep.end()
    finally:
        revive(dead)
    assert agree(lines_in(tmp_path), undisturbed(backend), backend == "echo")


def test_a_job_that_slurm_runs_twice_writes_no_row_twice(
    tmp_path: Path, undisturbed: Callable[[str], dict[str, list[str]]]
) -> None:
    sweep = Sweep("twice", tmp_path, *LINES["echo"], PLACE)
    wait_for_work(tmp_path)
    job = sweep.job()
    node = ask("squeue", "-h", "-j", job, "-o", "%N")
    (old,) = tasks_of(job)
    daemon = Path(f"/var/lib/rethink-slurm/run/slurmd.{node}.pid")
    os.kill(int(daemon.read_text()), signal.SIGKILL)  # its tasks live on
    os.kill(old, signal.SIGSTOP)  # and are slow enough to meet their second run
    try:
        until(lambda: len(tasks_of(job)) > 1, "a second run beside the first")
        time.sleep(3)
        os.kill(old, signal.SIGCONT)
        sweep.end()
    finally:
        revive(node)
    assert lines_in(tmp_path) == undisturbed("echo")
    Sweep("twice", tmp_path, *LINES["echo"], PLACE).end()
    assert lines_in(tmp_path) == undisturbed("echo")
