"""What a loaded model's weights are: bytes by type and part, and which layers were quantized."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

PARTS = ("base", "lora", "memory_bank", "memory_attention", "router", "other")
_BY_NAME = {
    "memory_banks.": "memory_bank",
    "memory_adapters.": "memory_attention",
    "routers.": "router",
}
_NUMBER = re.compile(r"\.\d+(?=\.|$)")
# Buffers that hold weights as integers: those of GPTQ and AWQ, and of a memory bank's matrices.
_INTEGERS = re.compile(r"qweight$|quantized_")
# Parameters that only belong to a weight.
_BESIDE = re.compile(r"scale|zero|bias|_shape$|_idx$")


def weights_report(model: nn.Module) -> dict[str, Any]:
    """Bytes by type and by part, and names of matrices, as they are after loading.

    Returns:
        `bytes` maps a torch type to the bytes of all weights and of what scales them in that type,
        each storage once; buffers count. `parts` maps a part (`part_of`) to the same. `quantized`
        and `kept` map a pattern of names, in which `*` stands for a number, to how many matrices
        it is: of linear layers, embeddings, convolutions, and, with their own name, those that a
        module holds besides a `weight`, as fused experts do.
    """
    size: Counter[str] = Counter()
    parts: dict[str, Counter[str]] = defaultdict(Counter)
    stored = _tensors(model)
    for part, tensor in [*_each_storage_once(stored), *_packed_weights(model)]:
        kind = str(tensor.dtype).removeprefix("torch.")
        count = tensor.numel() * tensor.element_size()
        size[kind] += count
        parts[part][kind] += count
    matrices = list(_matrices(model))
    return {
        "bytes": dict(sorted(size.items())),
        "parts": {part: dict(sorted(parts[part].items())) for part in PARTS if part in parts},
        "quantized": _patterns(name for name, small in matrices if small),
        "kept": _patterns(name for name, small in matrices if not small),
    }


def part_of(name: str, has_memory: bool, is_parameter: bool) -> str:
    """Which of `PARTS` a tensor belongs to, by its full name.

    Args:
        name: such as `memory_banks.0.base_bank.A`.
        has_memory: the model is a backbone with memory; what belongs to neither is `other`.
        is_parameter: of a model without memory, buffers are `other`.
    """
    if ".lora_" in f".{name}":
        return "lora"
    marked = (part for start, part in _BY_NAME.items() if name.startswith(start))
    part = next(marked, None) if has_memory else None
    if part is not None:
        return part
    base = name.startswith("backbone.") if has_memory else is_parameter
    return "base" if base else "other"


def is_quantized(weight: Tensor) -> bool:
    """Whether a weight is held in less than a plain tensor of 16 bits or more a number."""
    own_class = type(weight) not in (nn.Parameter, Tensor) or type(weight.data) is not Tensor
    return own_class or not weight.is_floating_point() or weight.element_size() < 2


def _matrices(model: nn.Module) -> Iterator[tuple[str, bool]]:
    """The name of each matrix, and whether it is quantized."""
    for name, module in model.named_modules():
        if _is_packed(module):
            yield name, True
        for own, weight in module.named_parameters(recurse=False):
            if weight.ndim >= 2 and not _BESIDE.search(own):
                yield _name_of(name, own), is_quantized(weight)
        for own, _ in module.named_buffers(recurse=False):
            if _INTEGERS.match(own):
                yield _name_of(name, own), True


def _name_of(module: str, own: str) -> str:
    """A layer's own name stands for its weight; what else a module holds is named in full."""
    plain = _INTEGERS.sub("", own)
    return module if plain in ("", "weight") else f"{module}.{plain}".lstrip(".")


def _is_packed(module: nn.Module) -> bool:
    """Whether a layer is one of torch.ao's, whose weight comes out of a method."""
    return type(module).__module__.startswith("torch.ao.nn.quantized") and callable(
        getattr(module, "weight", None)
    )


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """All plain tensors that hold weights, those inside of quantized ones included, by part."""
    has_memory = hasattr(model, "memory_banks")
    for name, module in model.named_modules():
        own = [(each, True) for each in module.named_parameters(name, recurse=False)]
        own += [(each, False) for each in module.named_buffers(name, recurse=False)]
        for (full, tensor), is_parameter in own:
            part = part_of(full, has_memory, is_parameter)
            yield from ((part, inner) for inner in _inner(tensor))


def _each_storage_once(tensors: Iterable[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """Tied weights are held once. The tensors live on in the model, so their addresses differ."""
    found: dict[int, tuple[str, Tensor]] = {}
    for part, tensor in tensors:
        key = tensor.data_ptr() if tensor.device.type != "meta" else id(tensor)
        # A tensor without elements has the address 0, and counts for nothing.
        found.setdefault(key, (part, tensor))
    return list(found.values())


def _packed_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Shapes and types of the weights that torch.ao's layers hold packed, by part.

    A layer unpacks its weight into a copy that is freed at once, whose address the next layer's
    copy takes: only its shape leaves here, and every layer counts.
    """
    has_memory = hasattr(model, "memory_banks")
    for name, module in model.named_modules():
        if not _is_packed(module):
            continue
        packed: Any = module
        weight, bias = packed.weight(), packed.bias()
        held = [
            weight.int_repr(),
            *([weight.q_per_channel_scales()] if _per_channel(weight) else []),
        ]
        part = part_of(f"{name}.weight", has_memory, True)
        for tensor in (*held, *([bias] if bias is not None else [])):
            yield part, tensor.to("meta")


def _per_channel(weight: Tensor) -> bool:
    return weight.qscheme() in (torch.per_channel_affine, torch.per_channel_symmetric)


def _inner(tensor: Any) -> Iterator[Tensor]:
    """The plain tensors of a tensor: the parts of torchao's, the state of bitsandbytes'."""
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        for name in names:
            yield from _inner(getattr(tensor, name))
        return
    yield tensor
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
