"""From the host to the device."""

import numpy as np
import torch
from torch import Tensor


def upload(values: np.ndarray, device: torch.device) -> Tensor:
    """Copy a host array to a GPU without waiting for what runs there; else share its memory."""
    held = torch.from_numpy(values)
    return held.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else held
