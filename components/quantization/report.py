"""What a loaded model's weights are: bytes by type, and which layers were quantized."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

_NUMBER = re.compile(r"\.\d+(?=\.|$)")


def weights_report(model: nn.Module) -> dict[str, Any]:
    """Bytes by type and names of layers, as they are after loading.

    Returns:
        `bytes` maps a torch type to the bytes of all weights and of what scales them in that type,
        each storage once; buffers count. `quantized` and `kept` map a pattern of names, in which
        `*` stands for a number, to how many linear layers and embeddings it is.
    """
    size: Counter[str] = Counter()
    seen: set[int] = set()
    for tensor in _tensors(model):
        key = tensor.data_ptr() if tensor.device.type != "meta" else id(tensor)
        if key not in seen or not tensor.numel():
            seen.add(key)
            size[str(tensor.dtype).removeprefix("torch.")] += tensor.numel() * tensor.element_size()
    layers = [(name, m) for name, m in model.named_modules() if _has_weights(m)]
    return {
        "bytes": dict(sorted(size.items())),
        "quantized": _patterns(name for name, module in layers if is_quantized(module)),
        "kept": _patterns(name for name, module in layers if not is_quantized(module)),
    }


def is_quantized(module: nn.Module) -> bool:
    """Whether a layer's weight is held in less than a plain floating-point tensor."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, nn.Parameter) or type(weight) is not nn.Parameter:
        return weight is not None  # a method, or a library's own class of tensor
    return type(weight.data) is not Tensor or not weight.is_floating_point()


def _has_weights(module: nn.Module) -> bool:
    if any(True for _ in module.children()) and not _is_packed(module):
        return False
    two_dimensional = getattr(getattr(module, "weight", None), "ndim", 0) == 2
    plain = isinstance(module, nn.Linear | nn.Embedding | Conv1D)
    return plain or two_dimensional or _is_packed(module)


def _is_packed(module: nn.Module) -> bool:
    """Whether a layer is one of torch.ao's, whose weight comes out of a method."""
    return type(module).__module__.startswith("torch.ao.nn.quantized") and callable(
        getattr(module, "weight", None)
    )


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    """All plain tensors that hold weights, those inside of quantized ones included."""
    for module in model.modules():
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            yield from _inner(tensor)
        if _is_packed(module):
            packed: Any = module
            weight = packed.weight()
            yield weight.int_repr()
            yield from (weight.q_per_channel_scales(),) if _per_channel(weight) else ()


def _per_channel(weight: Tensor) -> bool:
    return weight.qscheme() in (torch.per_channel_affine, torch.per_channel_symmetric)


def _inner(tensor: Any) -> Iterator[Tensor]:
    """The plain tensors of a tensor: the parts of torchao's, the state of bitsandbytes'."""
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        for name in names:
            yield from _inner(getattr(tensor, name))
        return
    yield tensor.detach()
    for state in (getattr(tensor, "quant_state", None), getattr(tensor, "SCB", None)):
        yield from _state(state)


def _state(state: Any) -> Iterator[Tensor]:
    """Scales that bitsandbytes keeps beside a weight, themselves perhaps quantized."""
    if isinstance(state, Tensor):
        yield state
    elif state is not None:
        for name in ("absmax", "code", "offset", "state2"):
            yield from _state(getattr(state, name, None))


def _patterns(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(_NUMBER.sub(".*", name) for name in names).items()))
