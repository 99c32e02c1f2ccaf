"""Products in 8-bit floating point, of torchao's layers with dynamically quantized activations.

torchao quantizes a layer's input anew for each layer that reads it. Here it is quantized once, in
plain tensor operations that the compiler joins with the norm before them, and layers that read it
are one product. What a gated feed-forward layer does between its products is one kernel.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

TYPE = torch.float8_e4m3fn
_LARGEST = torch.finfo(TYPE).max
_LEAST = 1e-12  # so that a row of zeros has a scale
_TILE = 128  # rows and columns that a multiprocessor computes of a product with scales
_SCALED = 1024  # outputs that a program multiplies by their scales
_FULL = 0.75  # share of the multiprocessors below which other ways to cut the work are faster


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
        return self.multiply(rows, scale, input.dtype).reshape(*input.shape[:-1], -1)

    def multiply(self, rows: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        """The outputs [rows, outputs] of rows that `quantize_rows` returned."""
        out: Tensor = torch.ops.rethink.float8_product(
            rows, scale, self.data, self.scale, self.bias, dtype
        )
        return out

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


@torch.library.custom_op("rethink::float8_product", mutates_args=())
def _product(
    rows: Tensor,
    scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """The product of `rows` and `weight` transposed, both in 8 bits, times their scales."""
    if rows.is_cuda and _leaves_processors_idle(len(rows), len(weight), rows.device):
        # Without scales the library has kernels that split a product's sum.
        one = _one(rows.device)
        scales: dict[str, Tensor] = {"scale_a": one, "scale_b": one}
        product = torch._scaled_mm(
            rows, weight.t(), **scales, out_dtype=torch.float32, use_fast_accum=True
        )
        return _scaled(product, scale, weight_scale, bias, dtype)
    scales = {"scale_a": scale, "scale_b": weight_scale.t()}
    return torch._scaled_mm(
        rows, weight.t(), **scales, bias=bias, out_dtype=dtype, use_fast_accum=True
    )


@_product.register_fake
def _(
    rows: Tensor,
    scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    return rows.new_empty(rows.shape[0], weight.shape[0], dtype=dtype)


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@functools.cache
def _one(device: torch.device) -> Tensor:
    return torch.ones((), device=device)


def _leaves_processors_idle(rows: int, outputs: int, device: torch.device) -> bool:
    """Whether a product with scales, which is cut into large tiles alone, has too few of them."""
    return -(-rows // _TILE) * -(-outputs // _TILE) < _FULL * _multiprocessors(device)


def _scaled(
    product: Tensor, scale: Tensor, weight_scale: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """A product [rows, outputs] of 8-bit values times the scales of both, and the bias added."""
    import triton

    from components.backends.hf.slots.kernels import float8_products

    out = torch.empty(product.shape, dtype=dtype, device=product.device)
    rows, outputs = product.shape
    float8_products.scale_product[rows, triton.cdiv(outputs, _SCALED)](
        product, scale, weight_scale, bias if bias is not None else out, out, outputs,
        BIAS=bias is not None, BLOCK=_SCALED, num_warps=4,
    )  # fmt: skip
    return out


@torch.library.custom_op("rethink::quantize_gated", mutates_args=())
def quantize_gated(product: Tensor) -> tuple[Tensor, Tensor]:
    """`quantize_rows` of SiLU of the first half of every row times the second half."""
    gate, up = product.chunk(2, -1)
    if not product.is_cuda:
        return quantize_rows(silu(gate) * up)
    import triton

    from components.backends.hf.slots.kernels import float8_products

    out, scales = _quantized_like(product)
    width = gate.shape[1]
    float8_products.quantize_gated[len(product),](
        product, out, scales, product.stride(0), WIDTH=width, LANES=triton.next_power_of_2(width),
        LARGEST=_LARGEST, LEAST=_LEAST, num_warps=4 if width < 4096 else 16,
    )  # fmt: skip
    return out, scales


@quantize_gated.register_fake
def _quantized_like(product: Tensor) -> tuple[Tensor, Tensor]:
    """Room for half of every row in 8 bits, and for the rows' scales."""
    out = product.new_empty(product.shape[0], product.shape[1] // 2, dtype=TYPE)
    return out, product.new_empty(product.shape[0], 1, dtype=torch.float32)
