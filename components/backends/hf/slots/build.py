"""Builds the scheduler of slots for a model and the memory that is free."""

import dataclasses
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from components.backends.hf.slots.carrying import CarryingSteps
from components.backends.hf.slots.fit import Layout, compile_if_possible, fuse_linears
from components.backends.hf.slots.kv_cache import FP8, KVCache, LayerShape, free_memory
from components.backends.hf.slots.packed_linear import pack
from components.backends.hf.slots.pages import PageAllocator
from components.backends.hf.slots.recurrent import (
    RecurrentSteps,
    StateCache,
    most_states,
)
from components.backends.hf.slots.scheduler import Scheduler, Steps
from components.backends.hf.slots.torch_steps import TorchSteps
from components.decoding.carrying_model import CarryingModel, carries
from components.decoding.recurrent_model import StateShape

_LOG = logging.getLogger(__name__)
_CPU_PAGE, _CPU_LEAST_PAGE = 2048, 256  # tokens; untouched ones take no memory
_GPU_PAGE = 64
_LONGEST = 1 << 17  # tokens of a row, where the model does not say
_CPU_SLOTS, _GPU_SLOTS = 128, 1024
_CPU_CHUNK, _GPU_CHUNK = 512, 8192


@dataclass(frozen=True, slots=True)
class Options:
    """What a user can set, and, for tests, sizes that are otherwise chosen here."""

    slots: int | None = None  # sequences that decode at once; None: as the device and memory allow
    share: bool = True
    page: int | None = None  # tokens
    pages: int | None = None
    chunk: int | None = None  # prompt tokens of one step
    compile: bool = True  # CUDA: compile the layers
    kv_cache_dtype: str = "auto"  # auto: the model's; fp8: half of 16 bits
    changing: tuple[str, ...] = ()  # keys of sampling that change logits row by row

    def as_cached(self, layers: Sequence[LayerShape]) -> tuple[LayerShape, ...]:
        """The layers' shapes with the type that keys and values are cached in."""
        if self.kv_cache_dtype == "auto":
            return tuple(layers)
        return tuple(dataclasses.replace(layer, dtype=FP8) for layer in layers)


def slots_for(options: Options, device: torch.device) -> int:
    """Sequences that decode at once, if memory allows."""
    return options.slots or (_GPU_SLOTS if device.type == "cuda" else _CPU_SLOTS)


def scheduler_factory(
    model: PreTrainedModel, layout: Layout, allowed: Tensor, options: Options
) -> Callable[[int], Scheduler]:
    """Return `make(slots)`, which builds a scheduler with a cache that takes the free memory.

    With half the slots, as after out of memory, the cache takes less.
    """
    states = tuple(each for each in layout if isinstance(each, StateShape))
    layers = tuple(each for each in layout if isinstance(each, LayerShape))
    if states:
        return _recurrent_factory(model, states, allowed, options)
    device = model.device
    reason = _why_no_graphs(model, layers, allowed, options.changing)
    layers = options.as_cached(layers)
    first_slots = slots_for(options, device)
    context = getattr(model.config.get_text_config(), "max_position_embeddings", _LONGEST)
    if reason is None and options.compile:
        fuse_linears(model)
        compile_if_possible(model)
    if reason is not None and (layered := pack(model)):
        _LOG.info(
            "weights of %d layers lie as the processor's matrix instructions read them", layered
        )
    if device.type == "cpu" and model.dtype == torch.float32:
        _LOG.info(
            "float32 ids do not depend on how many rows decode together, but the last digits of "
            "entropies and logprobs may: decoder=generate on an Intel processor fixes those too"
        )
    if reason is not None and device.type == "cuda":
        _LOG.warning("decoding without CUDA graphs: %s", reason)

    def make(slots: int) -> Scheduler:
        free_bytes = free_memory(device) * (first_slots + slots) // (2 * first_slots)
        slots, free_bytes = _beside_what_rows_carry(model, slots, free_bytes)
        tokens = free_bytes // sum(layer.bytes for layer in layers)
        size = options.page or _page(device, context, tokens // (2 * slots))
        count = options.pages or _count(tokens, size, slots, device)
        if reason is None:
            from components.backends.hf.slots.cuda_steps import GraphSteps  # needs Triton

            cache = KVCache(layers, count + 1, size, device)
            steps: Steps = GraphSteps(model, cache, int(allowed.sum()), slots, context)
        else:
            kind = CarryingSteps if carries(model) else TorchSteps
            steps = kind(model, KVCache(layers, count, size, device), allowed)
        chunk = options.chunk or (_GPU_CHUNK if device.type == "cuda" else _CPU_CHUNK)
        share = options.share
        if carries(model):
            chunk, share = sys.maxsize, False
        return Scheduler(steps, PageAllocator(count, size), slots, chunk, share)

    return make


def _beside_what_rows_carry(model: PreTrainedModel, slots: int, free_bytes: int) -> tuple[int, int]:
    """Slots whose rows carry at most half of the free memory, and what that leaves for pages."""
    each = model.carried_bytes if isinstance(model, CarryingModel) and model.carries else 0
    if each:
        slots = max(1, min(slots, free_bytes // (2 * each)))
    return slots, free_bytes - slots * each


def _recurrent_factory(
    model: PreTrainedModel, states: tuple[StateShape, ...], allowed: Tensor, options: Options
) -> Callable[[int], Scheduler]:
    device = model.device
    chunk = options.chunk or _CPU_CHUNK

    def make(slots: int) -> Scheduler:
        count = options.pages or most_states(states, slots, free_memory(device))
        steps = RecurrentSteps(model, StateCache(states, count, device), allowed)
        pages = PageAllocator(count, sys.maxsize, divisible=False)
        return Scheduler(steps, pages, min(slots, count), chunk, options.share)

    return make


def _why_no_graphs(
    model: PreTrainedModel,
    layers: tuple[LayerShape, ...],
    allowed: Tensor,
    changing: tuple[str, ...] = (),
) -> str | None:
    """Why steps cannot run as CUDA graphs; None if they can."""
    if model.device.type != "cuda":
        return f"the device is {model.device.type}"
    if find_spec("triton") is None:
        return "Triton is not installed"
    if any(layer.dtype not in (torch.float16, torch.bfloat16) for layer in layers):
        return "flash attention takes no float32"
    sizes = {size for layer in layers for size in (layer.key_size, layer.value_size)}
    if any(size > 256 or size % 8 for size in sizes):
        return f"flash attention takes no heads of {sizes}"
    if carries(model):
        return "what a row carries beside its pages lies with the row"
    if chooses_on_host(model):
        return "layers wait for the device to tell what they read, such as experts or chapters"
    if waits_for_outliers(model):
        return "bitsandbytes' 8-bit layers tell the host which inputs are outliers"
    if changing:
        return f"sampling.{changing[0]} changes logits row by row"
    count = int(allowed.sum())
    if not bool(allowed[:count].all()):
        return "ids that the tokenizer does not have lie between ones that it has"
    return None


def chooses_on_host(model: PreTrainedModel) -> bool:
    """Whether layers wait for the device to tell what they read: a model says so, or has experts.

    Experts are seen by what the config counts.
    """
    config = model.config.get_text_config()
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    has_experts = any((getattr(config, name, None) or 0) > 1 for name in names)
    return has_experts or bool(getattr(model, "chooses_on_host", False))


def waits_for_outliers(model: PreTrainedModel) -> bool:
    """Whether it has layers of LLM.int8(), which look for outliers in what they are given."""
    found: list[Any] = [each for each in model.modules() if type(each).__name__ == "Linear8bitLt"]
    return any(layer.state.threshold > 0 for layer in found)


def _page(device: torch.device, context: int, share: int) -> int:
    """Tokens of a page; a CPU has long ones, since sequences of one page are read without a copy.

    `share`: tokens that each slot, and the finished sequence retained beside it, can have.
    """
    if device.type == "cuda":
        return _GPU_PAGE
    size = _CPU_PAGE
    while size > max(share, _CPU_LEAST_PAGE):
        size //= 2
    return min(size, context)


def _count(tokens: int, size: int, slots: int, device: torch.device) -> int:
    """Pages that fit into free memory; on a CPU no more than twice the slots."""
    count = tokens // size
    if device.type != "cuda":
        count = min(count, 2 * slots)
    if count < 1:
        raise MemoryError(f"the cache of one page of {size} tokens does not fit into memory")
    return count
