"""Linear layers whose bfloat16 weights are stored as the processor's matrix instructions read them.

From ordinary weights, every product first reorders all of them, which takes longer than the product
itself for the few rows of a decode step.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from components.backends.hf.processor import X86_BFLOAT16, instructions
from components.backends.hf.slots.fused_linear import is_plain


def pack(model: PreTrainedModel) -> int:
    """Reorder the weights of a bfloat16 model's linear layers; return the number of layers.

    It is 0 if this processor or this torch would not gain from it. A weight that another module
    reads too, such as an embedding, is kept beside its reordered copy; others are replaced.
    """
    if model.device.type != "cpu" or model.dtype != torch.bfloat16 or not packs():
        return 0
    layers: list[Any] = [module for module in model.modules() if is_plain(module)]
    layers = [layer for layer in layers if layer.weight.dtype == torch.bfloat16]
    for layer in layers:
        pack_layer(layer, keep=_readers(model, layer.weight) > 1)
    return len(layers)


def packs() -> bool:
    """Whether this processor and this torch can multiply with reordered weights, and gain by it."""
    able = torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return able and not X86_BFLOAT16.isdisjoint(instructions() or ())


def pack_layer(layer: nn.Linear, keep: bool) -> None:
    """Reorder one layer's weight; with `keep`, the weight as it was stays too."""
    packed_layer: Any = layer
    packed_layer.packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.data, None)
    packed_layer.__class__ = Packed
    if not keep:
        layer.weight = nn.Parameter(packed_layer.packed, requires_grad=False)


class Packed(nn.Linear):
    """A linear layer with a reordered weight."""

    packed: Tensor

    def forward(self, input: Tensor) -> Tensor:
        """The product of all rows."""
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            input, self.packed, self.bias, "none", [], ""
        )
        return product


def _readers(model: PreTrainedModel, weight: Tensor) -> int:
    """How many modules have this weight."""
    by_module = (module.parameters(recurse=False) for module in model.modules())
    return sum(any(each is weight for each in parameters) for parameters in by_module)
