"""Puts a decoder together for a model and the memory that is free."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from components.backends.decoder.cache import KeyValues, LayerShape, free_memory
from components.backends.decoder.pages import Pages
from components.backends.decoder.plain import PlainSteps
from components.backends.decoder.scheduler import Scheduler, Steps

_LOG = logging.getLogger(__name__)
_CPU_PAGE = 2048  # tokens; untouched ones take no memory
_GPU_PAGE = 64
_CPU_SLOTS, _GPU_SLOTS = 64, 1024
_CPU_CHUNK, _GPU_CHUNK = 512, 8192


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may set, and what tests do."""

    slots: int | None = None  # rows that decode at once; None: as the device and memory allow
    share: bool = True
    page: int | None = None  # tokens
    pages: int | None = None
    chunk: int | None = None  # prompt tokens of one step


def slots_for(options: Options, device: torch.device) -> int:
    """Rows that decode at once, before memory is looked at."""
    return options.slots or (_GPU_SLOTS if device.type == "cuda" else _CPU_SLOTS)


def maker(
    model: PreTrainedModel, layers: tuple[LayerShape, ...], allowed: Tensor, options: Options
) -> Callable[[int], Scheduler]:
    """`make(slots)`: a scheduler with a cache as large as what is free; fewer slots take less."""
    device = model.device
    most = slots_for(options, device)
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)

    def make(slots: int) -> Scheduler:
        size = options.page or _page(device, context)
        count = options.pages or _count(layers, size, slots, most, device)
        cache = KeyValues(layers, count, size, device)
        steps: Steps = PlainSteps(model, cache, allowed)
        chunk = options.chunk or (_GPU_CHUNK if device.type == "cuda" else _CPU_CHUNK)
        return Scheduler(steps, Pages(count, size), slots, chunk, options.share)

    return make


def _page(device: torch.device, context: int | None) -> int:
    if device.type == "cuda":
        return _GPU_PAGE
    return min(_CPU_PAGE, context or _CPU_PAGE)


def _count(
    layers: tuple[LayerShape, ...], size: int, slots: int, most: int, device: torch.device
) -> int:
    """Pages that fit into free memory; on a CPU no more than twice the slots."""
    room = free_memory(device) * (most + slots) // (2 * most)
    count = room // (size * sum(layer.bytes for layer in layers))
    if device.type != "cuda":
        count = min(count, 2 * slots)
    if count < 1:
        raise MemoryError(f"the cache of one page of {size} tokens does not fit into memory")
    return count
