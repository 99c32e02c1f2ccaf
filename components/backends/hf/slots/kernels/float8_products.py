"""Triton kernels around products in 8-bit floating point."""

import triton
import triton.language as tl


@triton.jit
def scale_product(
    product, row_scales, weight_scales, bias, out, width, BIAS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Multiply a product of 8-bit values [rows, width] by what both were divided by."""
    row, lane = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < width
    scale = tl.load(row_scales + row) * tl.load(weight_scales + lane, mask=inside, other=0.0)
    values = tl.load(product + row * width + lane, mask=inside, other=0.0) * scale
    if BIAS:
        values += tl.load(bias + lane, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + lane, values.to(out.dtype.element_ty), mask=inside)


@triton.jit
def quantize_gated(
    product, out, scales, row_width, WIDTH: tl.constexpr, LANES: tl.constexpr,
    LARGEST: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    """SiLU of a row's first WIDTH values times the others, in 8 bits, and the row's scale.

    It rounds where `float8_linear.quantize_rows(silu(gate) * up)` does.
    """
    row, lane = tl.program_id(0), tl.arange(0, LANES)
    inside, place = lane < WIDTH, product + row * row_width + lane
    gate = tl.load(place, mask=inside, other=0.0)
    up = tl.load(place + WIDTH, mask=inside, other=0.0).to(tl.float32)
    wide = gate.to(tl.float32)
    active = (wide / (1 + tl.exp(-wide))).to(gate.dtype).to(tl.float32)
    values = (active * up).to(gate.dtype).to(tl.float32)
    scale = (tl.max(tl.abs(values), 0) / LARGEST).to(gate.dtype).to(tl.float32)
    scale = tl.maximum(scale, LEAST)
    tl.store(scales + row, scale)
    values = tl.minimum(tl.maximum(values / scale, -LARGEST), LARGEST)
    tl.store(out + row * WIDTH + lane, values.to(out.dtype.element_ty), mask=inside)
