"""Gated feed-forward layers in 8-bit floating point: down(silu(gate(x)) * up(x)) as one operation.

Between the products, the compiler would read twice what the first one wrote: for the largest value
of a row, and to quantize it. Here it is read once.
"""

import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from components.backends.hf.slots.float8_linear import Float8Product, is_float8, quantize_gated
from components.backends.hf.slots.fused_linear import Call, noting


class _Gated(nn.Module):
    """What a feed-forward layer becomes; its own layers, names and parameters stay."""

    both: Float8Product  # to gate and up
    down: Float8Product
    own_class: type[nn.Module]

    def forward(self, input: Tensor) -> Tensor:
        """The layer's output, in the type of `input`."""
        rows, scale = quantize_gated(self.both(input.reshape(-1, input.shape[-1])))
        out = self.down.multiply(rows, scale, input.dtype)
        return out.reshape(*input.shape[:-1], -1)


@functools.cache  # one class for all layers, so that they are compiled once
def _gated(own_class: Any) -> Any:
    return type(f"Gated{own_class.__name__}", (_Gated, own_class), {})


class GatedLayers:
    """The feed-forward layers of a model that are gated by SiLU.

    None is known by name: a layer is one if it has three linear layers, no other parameters, and
    gave what the formula gives in a trial run of the model.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._found: list[tuple[nn.Module, Sequence[nn.Linear], nn.Linear]] = []

    def watching(self, model: nn.Module) -> AbstractContextManager[None]:
        """Record what candidates are given, and give, during one forward of `model`."""
        layers = (module for module in model.modules() if len(_linears(module)) == 3)
        return noting(layers, self._note)

    def find(self, groups: Sequence[Sequence[nn.Linear]]) -> None:
        """Find the layers among those that were called; `groups` are linear layers to be fused."""
        for call in self.calls:
            own = set(map(id, _linears(call.layer)))
            parts = [group for group in groups if own.issuperset(map(id, group))]
            if [len(group) for group in parts] != [2, 1]:
                continue
            (gate, up), (down,) = parts
            fits = gate.out_features == up.out_features == down.in_features
            if fits and torch.equal(down(silu(gate(call.given)) * up(call.given)), call.out):
                self._found.append((call.layer, parts[0], down))

    def join(self) -> None:
        """Let each compute its whole formula; its linear layers are fused already."""
        for module, pair, down in self._found:
            joined: Any = module
            joined.both, joined.down = _product_of(pair[0]), _product_of(down)
            joined.own_class = joined.__class__
            joined.__class__ = _gated(joined.__class__)

    def undo(self) -> None:
        """Let each be as it was."""
        for module, _, _ in self._found:
            joined: Any = module
            joined.__class__ = getattr(joined, "own_class", joined.__class__)

    def _note(self, module: nn.Module, given: tuple[Any, ...], out: Any) -> None:
        if len(given) == 1 and isinstance(out, Tensor):
            self.calls.append(Call(module, given[0].clone(), out.clone()))


def _linears(module: nn.Module) -> list[nn.Linear]:
    """The 8-bit layers of a module that has nothing else with parameters."""
    children = list(module.children())
    layers = [child for child in children if isinstance(child, nn.Linear) and is_float8(child)]
    others = (child for child in children if not any(child is layer for layer in layers))
    if any(True for other in others for _ in other.parameters()):
        return []
    return layers if not list(module.parameters(recurse=False)) else []


def _product_of(layer: Any) -> Float8Product:
    product: Float8Product = layer.product
    return product
