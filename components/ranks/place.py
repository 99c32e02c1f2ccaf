"""Which of how many processes this one is, by the variables that its launcher has set."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.spec import SpecError

_PORTS = (20000, 20000)  # the first port, and how many, of which a job takes one by its id
# The variables of torchrun and deepspeed, of submitit's processes, of Slurm's srun. A job's batch
# script has a SLURM_PROCID too, but only srun starts as many processes as a step has tasks.
_SRUN = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
_LAUNCHERS = {  # by the variable that nothing else sets
    "RANK": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "SUBMITIT_LOCAL_GLOBALID": (
        "SUBMITIT_LOCAL_GLOBALID",
        "SUBMITIT_LOCAL_NTASKS",
        "SUBMITIT_LOCAL_LOCALID",
    ),
    "SLURM_STEP_NUM_TASKS": _SRUN,
}


@dataclass(frozen=True, slots=True)
class Place:
    """Rank `rank` of `world`, and its number among those of its node."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0


def place(environment: Mapping[str, str] = os.environ) -> Place:
    """The place that torchrun, `deepspeed` or Slurm gives this process; alone where none does.

    Raises:
        SpecError: a variable is missing or is no number.
    """
    names = next((names for sign, names in _LAUNCHERS.items() if sign in environment), None)
    if names is None:
        return Place()
    try:
        rank, world = (int(environment[name]) for name in names[:2])
        local_rank = int(environment.get(names[2], rank))
    except (KeyError, ValueError) as error:
        given = {name: environment.get(name) for name in names}
        raise SpecError(
            f"{', '.join(names)} must be whole numbers, as launchers set them, got {given}"
        ) from error
    sees_one = "," not in environment.get("CUDA_VISIBLE_DEVICES", ",")
    return Place(rank, world, 0 if names is _SRUN and sees_one else local_rank)


def set_meeting_point() -> None:
    """Set MASTER_ADDR and MASTER_PORT, where ranks meet, by a job's variables if need be.

    Raises:
        SpecError: no launcher says where.
    """
    if "MASTER_ADDR" in os.environ and "MASTER_PORT" in os.environ:
        return
    nodes = os.environ.get("SLURM_JOB_NODELIST")
    job = os.environ.get("SUBMITIT_LOCAL_JOB_ID") or os.environ.get("SLURM_JOB_ID")
    if job is None or not job.isdigit():
        raise SpecError(
            "MASTER_ADDR and MASTER_PORT must say where ranks meet: start the command with "
            "torchrun, with deepspeed --no_local_rank, or as a Slurm job (cluster=slurm)"
        )
    first, count = _PORTS
    os.environ["MASTER_ADDR"] = _first_of(nodes) if nodes else "127.0.0.1"
    os.environ["MASTER_PORT"] = str(first + int(job) % count)


def _first_of(nodes: str) -> str:
    """The first node of a list such as gpu[3-4,7]."""
    command = ["scontrol", "show", "hostnames", nodes]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.split()[0]
