"""Hands jobs to submitit, as arrays no larger than the site allows, and asks how they are."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import submitit
from submitit.core import utils

from launch.config.cluster import submitit_parameters
from launch.sweeps.job import Job
from pipeline.spec import SpecError

ROOT = Path(__file__).resolve().parents[2]
SITE_VARIABLES = ("SLURM_CONF", "SLURM_CONF_SERVER")  # where Slurm is, not what a job is
PENDING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"}
PENDING |= {"RESV_DEL_HOLD"}
RUNNING = {"RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED"}


class QueueError(RuntimeError):
    """The queue could not be asked."""


def executor_of(options: dict[str, Any]) -> submitit.AutoExecutor:
    """An executor of submitit with the options set. Raises SpecError where Slurm is not there."""
    where = "slurm" if options["where"] == "slurm" else "local"
    if where == "slurm" and shutil.which("sbatch") is None:
        raise SpecError("cluster=slurm needs sbatch and srun on the PATH, and here is none")
    limit = {f"{where}_max_num_timeout": options["max_num_timeout"]}
    executor = submitit.AutoExecutor(folder=options["folder"], cluster=where, **limit)
    executor.update_parameters(**submitit_parameters(options))
    if where == "slurm" and options["wckey"] is None:
        # submitit has a key of its own, which it keeps if told None, and many sites refuse.
        executor._executor.parameters["wckey"] = None
    return executor


def submit(jobs: Sequence[Job], options: dict[str, Any]) -> list[Any]:
    """Submit jobs as one array, or a plain job. Returns submitit's jobs.

    Raises:
        SpecError: the cluster refuses; its own words are in the message.
    """
    executor = executor_of(options)
    try:
        with _outside_of_any_job():
            return list(executor.submit_array(list(jobs)))
    except utils.FailedJobError as error:
        raise SpecError(refusal(str(error), options)) from error


def refusal(said: str, options: dict[str, Any]) -> str:
    """What Slurm said no to, and what was asked."""
    lines = [line for line in said.splitlines() if "error:" in line] or said.splitlines()
    asked = {k: v for k, v in submitit_parameters(options).items() if "setup" not in k}
    words = ", ".join(f"{k.removeprefix('slurm_')}={v}" for k, v in asked.items())
    reason = " ".join(line.removeprefix("sbatch: ").strip() for line in lines[-3:])
    return f"Slurm refuses the jobs: {reason} (asked: {words}; change hydra.launcher.<option>)"


@contextmanager
def _outside_of_any_job() -> Iterator[None]:
    """No variables of a job that this process may be in; jobs find this code from anywhere."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), before]))
    of_the_site = {name: os.environ[name] for name in SITE_VARIABLES if name in os.environ}
    try:
        with submitit.helpers.clean_env():
            os.environ.update(of_the_site)
            yield
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


def test_only(count: int, options: dict[str, Any]) -> str:
    """Ask Slurm whether it would take an array of `count` jobs, submitting nothing.

    Raises:
        SpecError: it would not.
    """
    slurm: Any = executor_of(options)._executor
    if count > 1:
        slurm.parameters["map_count"] = count
    text = slurm._make_submission_file_text("true", "plan")
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
        file.write(text)
        file.flush()
        with _outside_of_any_job():
            done = _ask(["sbatch", "--test-only", file.name])
    if done.returncode:
        raise SpecError(refusal(done.stderr, options))
    return done.stderr.strip().removeprefix("sbatch: ")


def array_limit(options: dict[str, Any]) -> int:
    """The most jobs that one array may have here."""
    own: int | None = options["max_array"]
    if own is not None or options["where"] != "slurm":
        return own or 10**9
    found = re.search(r"MaxArraySize\s*=\s*(\d+)", _ask(["scontrol", "show", "config"]).stdout)
    return int(found[1]) if found else 1001


def _ask(command: list[str]) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except FileNotFoundError as error:
        raise QueueError(
            f"there is no {command[0]} here; type this line where Slurm's commands are, or leave "
            "cluster=slurm out"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise QueueError(f"{command[0]}: {error}") from error


def slurm_states(ids: Sequence[str]) -> dict[str, str]:
    """The state of every job: squeue's while it is queued or runs, else how sacct says it ended.

    A job that neither knows is `GONE`. Accounting may lag or be absent: it is not waited for.

    Raises:
        QueueError: squeue does not answer.
    """
    arrays = sorted({name.partition("_")[0] for name in ids})
    done = _ask(["squeue", "-h", "-r", "--all", "-o", "%i|%T", "-j", ",".join(arrays)])
    if done.returncode and "Invalid job id" not in done.stderr:
        raise QueueError(done.stderr.strip())
    states = dict(_parsed(done.stdout.splitlines()))
    left = [name for name in ids if states.get(name, "") not in PENDING | RUNNING]
    if left:
        wanted = sorted({name.partition("_")[0] for name in left})
        command = ["sacct", "-X", "-n", "-P", "-o", "JobID,State", "-j", ",".join(wanted)]
        told = dict(_parsed(_ask(command).stdout.splitlines()))
        over = {name: state for name, state in told.items() if state not in PENDING | RUNNING}
        states |= {name: over.get(name) or states.get(name) or "GONE" for name in left}
    return {name: states[name] for name in ids}


def _parsed(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        name, *rest = line.split("|")
        if rest and rest[-1]:
            yield name, rest[-1].split()[0].rstrip("+")
