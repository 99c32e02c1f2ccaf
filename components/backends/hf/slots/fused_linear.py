"""Linear layers that read the same tensor, computed as one product.

The projections to queries, keys and values, or to gate and up, are several products with the same
input. One product with their concatenated weights keeps a GPU busier than each by itself. A trial
run of the model shows which layers these are, so no architecture need be known by name. Only one
thread at a time may call a model with fused layers.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from components.backends.hf.slots.float8_linear import Float8Product, is_float8


class _PlainProduct:
    """The concatenated weights of layers that are called in turn, and their current product."""

    def __init__(self, parts: Sequence[nn.Linear]) -> None:
        self.weight = torch.cat([part.weight.data for part in parts])
        biases = [part.bias.data for part in parts if part.bias is not None]
        self.bias = torch.cat(biases) if biases else None
        self.out: Tensor | None = None

    def __call__(self, input: Tensor) -> Tensor:
        """The outputs of all layers."""
        return linear(input, self.weight, self.bias)

    def lend(self, part: nn.Linear, start: int, end: int) -> None:
        """Make the layer's weight a view of outputs `start` to `end`."""
        part.weight.data = self.weight[start:end]


class _FusedLinear(nn.Linear):
    """One of these layers: the first to be called computes the product, the last frees it."""

    product: _PlainProduct | Float8Product
    place: tuple[int, int]
    first: bool
    last: bool

    def forward(self, input: Tensor) -> Tensor:
        """This layer's columns of the product."""
        product = self.product
        out = product(input) if self.first else product.out
        assert out is not None
        product.out = None if self.last else out
        start, end = self.place
        return out[..., start:end]


class FusedLinears:
    """Groups of fused layers. A layer's own weight becomes a view of the concatenated one.

    A fused layer changes its `__class__`, so hooks, names and parameters stay as they were.
    """

    def __init__(self, groups: Sequence[Sequence[nn.Linear]]) -> None:
        self.groups = groups
        for parts in groups:
            _fuse(parts)

    def undo(self) -> None:
        """Let every layer compute its own product again."""
        for part in (part for parts in self.groups for part in parts):
            part.__class__ = nn.Linear


def _fuse(parts: Sequence[nn.Linear]) -> None:
    product, start = (Float8Product if is_float8(parts[0]) else _PlainProduct)(parts), 0
    for part in parts:
        end = start + part.out_features
        product.lend(part, start, end)
        if product.bias is not None:
            part.bias.data = product.bias[start:end]
        fused: Any = part
        fused.__class__ = _FusedLinear
        fused.product, fused.place = product, (start, end)
        fused.first, fused.last = part is parts[0], part is parts[-1]
        start = end


@dataclass(frozen=True, slots=True)
class Call:
    """What a layer was given in a trial run, and gave; copies, since models change tensors."""

    layer: nn.Module
    given: Tensor
    out: Tensor


@contextmanager
def noting(layers: Iterable[nn.Module], note: Callable[..., None]) -> Iterator[None]:
    """Call `note(layer, arguments, output)` after every call of one of the layers."""
    hooks = [layer.register_forward_hook(note) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class SharedInputs:
    """Records which linear layers are called in turn with the same tensor."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._given: list[Tensor] = []  # not copied: which layers share one is what counts

    def watching(self, model: nn.Module) -> AbstractContextManager[None]:
        """Record during one forward of `model`."""
        layers = (module for module in model.modules() if isinstance(module, nn.Linear))
        return noting(layers, self._note)

    def groups(self) -> list[list[nn.Linear]]:
        """Layers that can be fused, in the order of their calls; one alone if it gains by it."""
        groups: list[list[nn.Linear]] = []
        before: Tensor | None = None
        layers = [call.layer for call in self.calls if isinstance(call.layer, nn.Linear)]
        for layer, tensor in zip(layers, self._given, strict=True):
            if tensor is before and _alike(layer, groups[-1][-1]):
                groups[-1].append(layer)
            else:
                groups.append([layer])
            before = tensor
        weights = [id(layer.weight) for layer in layers]
        return [
            parts
            for parts in groups
            if (len(parts) > 1 or is_float8(parts[0]))
            and all(weights.count(id(part.weight)) == 1 for part in parts)
        ]

    def _note(self, layer: nn.Module, given: tuple[Any, ...], out: Tensor) -> None:
        self._given.append(given[0])
        self.calls.append(Call(layer, given[0].clone(), out.clone()))


def is_plain(layer: nn.Module) -> bool:
    """Whether it is a linear layer whose weight is a tensor of numbers: torchao's are not."""
    return type(layer) is nn.Linear and type(layer.weight) is nn.Parameter


def _alike(layer: nn.Linear, other: nn.Linear) -> bool:
    """Whether both are layers of one kind that can be joined; adapters' layers cannot."""
    known = (is_plain, is_float8)
    joinable = any(kind(layer) and kind(other) for kind in known)
    same = (layer.bias is None) == (other.bias is None)
    weights = (layer.weight, other.weight)
    kinds = {(weight.dtype, weight.device, weight.shape[1]) for weight in weights}
    return joinable and same and len(kinds) == 1
