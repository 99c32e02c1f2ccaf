"""How running out of memory looks, and what to do about it."""

import torch

from pipeline.protocols import BackendLostError

_SAID = (
    "DefaultCPUAllocator",
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "Cannot allocate memory",
)


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: torch has a class for some cases and a sentence for the others."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, BackendLostError):  # of several ranks: its words may be an error's
        return False
    said = isinstance(error, RuntimeError | OSError)
    return said and any(word in str(error) for word in _SAID)
