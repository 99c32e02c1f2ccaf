"""What of its surroundings an attempt records: versions, commit, job and memory."""

import os
import re
import resource
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

PACKAGES = (
    "hydra-core",
    "omegaconf",
    "torch",
    "transformers",
    "datasets",
    "deepspeed",
    "submitit",
    "openai",
    "aiohttp",
)


def job_id() -> str | None:
    """The cluster's name for the job that this process belongs to."""
    array, index = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{index}" if array else os.environ.get("SLURM_JOB_ID")


def versions() -> dict[str, str]:
    """Versions of the packages that can move a number."""
    installed = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed


def git_commit() -> str | None:
    """Commit of the running code, plus `-dirty` when the tree differs; None outside a checkout."""
    here = Path(__file__).parent
    command = [
        "git",
        "-C",
        str(here),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=40",
        "--exclude=*",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def peak_memory_bytes() -> int:
    """Largest resident set of this process so far.

    Linux has it by program: a process that a larger one started inherits that one's from getrusage.
    """
    with suppress(OSError):
        status = Path("/proc/self/status").read_bytes()
        if found := re.search(rb"VmHWM:\s*(\d+) kB", status):
            return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1024 if sys.platform != "darwin" else 1)


def peak_memory_mib() -> int:
    """As `peak_memory_bytes`, in MiB."""
    return peak_memory_bytes() >> 20
