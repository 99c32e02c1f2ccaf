"""Products in 8-bit floating point, of torchao's layers with dynamically quantized activations.

torchao quantizes a layer's input anew for each layer that reads it. Here it is quantized once, in
plain tensor operations that the compiler joins with the norm or the activation function before
them, and layers that read it are one product.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

TYPE = torch.float8_e4m3fn
_LARGEST = torch.finfo(TYPE).max
_LEAST = 1e-12  # so that a row of zeros has a scale


def is_float8(layer: nn.Module) -> bool:
    """Whether it is torchao's linear layer of weights and activations scaled row by row."""
    weight: Any = getattr(layer, "weight", None)
    if type(layer) is not nn.Linear or type(weight).__name__ != "Float8Tensor":
        return False
    activations, rows = weight.act_quant_kwargs, (weight.shape[0], 1)
    by_row = tuple(weight.scale.shape) == rows and weight.block_size == [1, weight.shape[1]]
    types = {weight.qdata.dtype, getattr(activations, "float8_dtype", None)}
    bounds = (getattr(activations, name, None) for name in ("hp_value_lb", "hp_value_ub"))
    return by_row and types == {TYPE} and all(bound is None for bound in bounds)


class Float8Product:
    """The concatenated weights of layers that are called in turn, and their current product."""

    def __init__(self, parts: Sequence[nn.Linear]) -> None:
        """The layers' own weights become views of these."""
        weights: list[Any] = [part.weight for part in parts]
        self.data = torch.cat([weight.qdata for weight in weights])  # [outputs, inputs]
        self.scale = torch.cat([weight.scale for weight in weights]).float()  # [outputs, 1]
        biases = [part.bias.data for part in parts if part.bias is not None]
        self.bias = torch.cat(biases) if biases else None
        self.out: Tensor | None = None

    def __call__(self, input: Tensor) -> Tensor:
        """The outputs of all layers, in the type of `input`, [..., outputs]."""
        rows, scale = quantize_rows(input.reshape(-1, input.shape[-1]))
        out = torch._scaled_mm(
            rows,
            self.data.t(),
            scale_a=scale,
            scale_b=self.scale.t(),
            bias=self.bias,
            out_dtype=input.dtype,
            use_fast_accum=True,
        )
        return out.reshape(*input.shape[:-1], -1)

    def lend(self, part: nn.Linear, start: int, end: int) -> None:
        """Make the layer's weight a view of outputs `start` to `end`."""
        weight: Any = part.weight
        weight.qdata, weight.scale = self.data[start:end], self.scale[start:end]


def quantize_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [rows, inputs] in 8 bits, and what to multiply each by, float32 [rows, 1].

    As torchao does it, in the same order and types, so that its own forward gives the same.
    """
    scale = (rows.abs().amax(-1, keepdim=True) / _LARGEST).float().clamp(min=_LEAST)
    return (rows.float() / scale).clamp(-_LARGEST, _LARGEST).to(TYPE), scale
