"""How much main memory there is left."""

import os
from pathlib import Path


def free_main_memory() -> int:
    """Bytes of main memory that the machine, and this process's container, still have."""
    limits = []
    info = Path("/proc/meminfo")
    if info.is_file():
        fields = dict(line.split(":") for line in info.read_text().splitlines())
        limits.append(int(fields["MemAvailable"].split()[0]) * 1024)
    limit, used = (Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory.current"))
    if limit.is_file() and limit.read_text().strip() != "max":
        limits.append(int(limit.read_text()) - int(used.read_text()))
    if not limits:
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
    return max(0, min(limits))
