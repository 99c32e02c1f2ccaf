"""The machine that a model runs on: device, cores, memory."""

import os
from pathlib import Path

import torch

from pipeline.spec import SpecError, require
from pipeline.store.environment import peak_memory_bytes


def device_of(name: str) -> torch.device:
    """The device of a name: auto, or one of torch's. Raises SpecError if the machine lacks it."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        rule = "be auto or a torch device such as cpu or cuda:0"
        raise SpecError(f"backend.device must {rule}, got {name!r}") from error
    missing = device.type == "cuda" and not torch.cuda.is_available()
    require(not missing, "backend.device", "be one that this machine has", name)
    return device


def device_name(device: torch.device) -> str:
    """The name of a GPU, or the kind of another device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return device.type


def usable_cores() -> int:
    """Cores that this process may use: its affinity, a container's quota, $OMP_NUM_THREADS."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = Path("/sys/fs/cgroup/cpu.max")
    share, period = quota.read_text().split() if quota.is_file() else ("max", "1")
    if share != "max":
        cores = min(cores or 1, max(1, int(share) // int(period)))
    return min(cores or 1, torch.get_num_threads())


def peak_memory(device: torch.device, all_devices: bool = False) -> int:
    """Most bytes so far: allocated on a GPU (or on all), else resident in this process."""
    if device.type != "cuda":
        return peak_memory_bytes()
    devices = range(torch.cuda.device_count()) if all_devices else [device]
    return sum(torch.cuda.max_memory_allocated(each) for each in devices)
