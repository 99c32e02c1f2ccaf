"""8-bit products of torchao's layers: the layers' own, inputs quantized once for all."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from components.backends.hf.slots.float8_linear import is_float8, quantize_rows
from components.backends.hf.slots.fused_linear import FusedLinears, SharedInputs


@pytest.fixture(scope="module")
def float8() -> Callable[..., nn.Linear]:
    """`float8(outputs, bias)`: torchao's layer of 64 inputs, as a GPU would have it."""
    from torchao.float8.inference import Float8MMConfig
    from torchao.quantization import PerRow
    from torchao.quantization.quantize_.workflows.float8.float8_tensor import (
        Float8Tensor,
        QuantizeTensorToFloat8Kwargs,
    )

    def make(outputs: int, bias: bool = False) -> nn.Linear:
        torch.manual_seed(outputs)
        layer = nn.Linear(64, outputs, bias=bias).bfloat16()
        product = Float8MMConfig(use_fast_accum=True)
        given: dict[str, Any] = {"granularity": PerRow(), "mm_config": product}
        activations = QuantizeTensorToFloat8Kwargs(**given)
        weight = Float8Tensor.from_hp(layer.weight.data, act_quant_kwargs=activations, **given)
        layer.weight = nn.Parameter(weight, requires_grad=False)
        return layer

    return make


@pytest.mark.parametrize("bias", [False, True])
@torch.inference_mode()
def test_joined_8_bit_layers_give_what_each_gives_by_itself(
    bias: bool, float8: Callable[..., nn.Linear]
) -> None:
    layers = [float8(size, bias) for size in (32, 16, 48)]
    given = torch.randn(2, 3, 64, dtype=torch.bfloat16) * torch.logspace(-3, 2, 3)[:, None]
    given = given.bfloat16()
    expected = [layer(given) for layer in layers]
    joined = FusedLinears([layers])
    for layer, out in zip(layers, expected, strict=True):
        assert torch.equal(layer(given), out)
    joined.undo()
    for layer, out in zip(layers, expected, strict=True):
        assert torch.equal(layer(given), out)


@torch.inference_mode()
def test_a_single_8_bit_layer_is_taken_too_and_a_plain_one_is_not(
    float8: Callable[..., nn.Linear],
) -> None:
    alone, plain = float8(64), nn.Linear(64, 64).bfloat16()
    assert is_float8(alone) and not is_float8(plain)
    readers = SharedInputs()
    with readers.watching(nn.ModuleList([alone, plain])):
        plain(alone(torch.randn(2, 64).bfloat16()))
    assert readers.groups() == [[alone]]


def test_rows_are_scaled_to_the_whole_range_each_by_itself() -> None:
    rows = torch.tensor([[0.0, 0.0], [1e-4, -2e-4], [3e4, 1.0]])
    quantized, scale = quantize_rows(rows)
    assert quantized.float().abs().amax(1).tolist() == [0.0, 448.0, 448.0]
    assert torch.allclose(quantized.float() * scale, rows, rtol=0.07, atol=3e4 / 448 / 512)
