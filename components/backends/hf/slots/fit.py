"""Whether a model can be decoded with paged attention: what its attention needs, and a trial."""

import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from components.backends.hf.padding import rotary_switch
from components.backends.hf.rowwise import attends_in_chunks
from components.backends.hf.slots.attention import (
    NAME,
    ProbeFrame,
    UnfitAttentionError,
    compile_layers,
    leave_uncompiled,
    using_frame,
)
from components.backends.hf.slots.fused_linear import Call, FusedLinears, SharedInputs
from components.backends.hf.slots.gated_float8 import GatedLayers
from components.backends.hf.slots.kv_cache import LayerShape
from components.decoding.carrying_model import CarryingModel
from components.decoding.recurrent_model import RecurrentModel, StateShape

_LOG = logging.getLogger(__name__)
_TRIAL = 24  # tokens
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}  # of the logits' norm; else:
_COARSE = 0.05


class UnfitModelError(ValueError):
    """The model must be decoded by `generate`; the message says why."""


Layout = tuple[LayerShape, ...] | tuple[StateShape, ...]


def fit(model: PreTrainedModel) -> Layout:
    """Prepare `model` for slots; return what each of its layers caches.

    A `RecurrentModel` keeps a state per sequence. Others get the decoder's attention, and cache
    keys and values per token; rows of a `CarryingModel` carry something beside them.

    Raises:
        UnfitModelError: the model does not follow the attention interface, keeps more state than
            keys and values, or gives other logits than with its own attention. It is as before.
    """
    if isinstance(model, RecurrentModel):
        return tuple(model.state_shapes())
    config = model.config.get_text_config()
    if not model._supports_attention_backend:
        raise UnfitModelError("it does not follow Transformers' attention interface")
    keeps_more = model._is_stateful and not isinstance(model, CarryingModel)
    if keeps_more or config.is_encoder_decoder:
        raise UnfitModelError("it keeps more state than keys and values")
    if attends_in_chunks(model):
        size = getattr(config, "attention_chunk_size", None)
        raise UnfitModelError(f"some of its layers attend within chunks of {size} tokens")
    switch = rotary_switch(model)
    if switch is not None:
        raise UnfitModelError(
            f"beyond {switch} tokens it turns all positions of a call by other factors (LongRoPE)"
        )
    before = config._attn_implementation
    with torch.inference_mode():
        expected = _logits(model)
        probe = ProbeFrame()
        try:
            model.set_attn_implementation(NAME)
            with using_frame(probe):
                logits = _logits(model)
            _compare(logits, expected, "under the decoder's attention its logits differ")
            layers = _layers(probe, config.num_hidden_layers)
        except (UnfitAttentionError, UnfitModelError) as error:
            model.set_attn_implementation(before)
            raise UnfitModelError(str(error)) from error
    return layers


def fuse_linears(model: PreTrainedModel) -> int:
    """Fuse linear layers that read the same tensor; return how many products that saves.

    Gated feed-forward layers in 8 bits become one operation too. `model` has the decoder's
    attention. If a fused layer gives another output than it did in a trial run, all is undone.
    Logits are not compared: in 8 bits, the last place of one value changes those of many layers on.
    """
    readers, gated = SharedInputs(), GatedLayers()
    with torch.inference_mode():
        with using_frame(ProbeFrame()), readers.watching(model), gated.watching(model):
            _logits(model)
        groups = readers.groups()
        gated.find(groups)
        joined = FusedLinears(groups)
        try:
            fused = {id(layer) for parts in groups for layer in parts}
            _compare_calls(call for call in readers.calls if id(call.layer) in fused)
            gated.join()
            _compare_calls(gated.calls)
        except UnfitModelError as error:
            gated.undo()
            joined.undo()
            _LOG.warning("products stay apart, which is slower: joined, %s", error)
            return 0
    return sum(len(parts) - 1 for parts in joined.groups)


def compile_if_possible(model: PreTrainedModel) -> None:
    """Compile the layers of a model that has the decoder's attention.

    Layers that the compiler cannot follow, such as those that read a memory, stay as they are, and
    the log says why.
    """
    from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException  # loads slowly

    compile_layers(model)
    try:
        with torch.inference_mode(), using_frame(ProbeFrame()):
            _logits(model)
    except (TorchDynamoException, FailOnRecompileLimitHit) as error:
        leave_uncompiled(model)
        reason = str(error).strip().splitlines()[0]
        _LOG.warning("the layers run uncompiled, which is slower: %s", reason)


def _compare_calls(calls: Iterable[Call]) -> None:
    for call in calls:
        what = f"what {type(call.layer).__name__} gives differs"
        _compare(call.layer(call.given), call.out, what)


def _logits(model: Any) -> Tensor:
    with torch.inference_mode(False):  # as in a step: the compiler tells such tensors from others
        ids = torch.arange(_TRIAL, device=model.device) * 7919 + 11
        ids %= model.config.get_text_config().vocab_size
        positions = torch.arange(len(ids), device=ids.device)
    out = model(input_ids=ids[None], position_ids=positions[None], use_cache=False)
    return out.logits[0]  # type: ignore[no-any-return]


def _compare(found: Tensor, expected: Tensor, what: str) -> None:
    error, whole = (float(each.double().norm()) for each in (found - expected, expected))
    limit = _TOLERANCE.get(found.dtype, _COARSE)
    if not error <= limit * whole:
        raise UnfitModelError(f"{what} by {error / (whole or 1):.2g} of its norm, over {limit:g}")


def _layers(probe: ProbeFrame, count: int) -> tuple[LayerShape, ...]:
    if sorted(probe.shapes) != list(range(count)):
        raise UnfitModelError(f"only {len(probe.shapes)} of its {count} layers attend")
    return tuple(probe.shapes[layer] for layer in range(count))
