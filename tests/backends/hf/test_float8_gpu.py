"""Kernels around 8-bit products on a CUDA device: the same as plain tensor operations."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from transformers import LlamaConfig, LlamaForCausalLM

from components.backends.hf.slots import float8_linear
from components.backends.hf.slots.fit import fit, fuse_linears
from components.backends.hf.slots.float8_linear import quantize_gated, quantize_rows

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9):
    pytest.skip("needs a CUDA device with 8-bit products", allow_module_level=True)


def normal(*shape: int) -> Tensor:
    torch.manual_seed(sum(shape))
    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("outputs", [48, 4096, 28_672])
@pytest.mark.parametrize("rows", [1, 7, 64, 300, 1024])
def test_products_of_few_or_many_rows_are_those_of_dequantized_values(
    rows: int, outputs: int, bias: bool
) -> None:
    inputs, added = 1536, normal(outputs) if bias else None
    given, scale = quantize_rows(
        normal(rows, inputs) * torch.logspace(-3, 2, rows, device="cuda")[:, None].bfloat16()
    )
    weight, weight_scale = quantize_rows(normal(outputs, inputs))
    found = torch.ops.rethink.float8_product(
        given, scale, weight, weight_scale, added, torch.bfloat16
    )
    exact = (given.double() * scale) @ (weight.double() * weight_scale).T
    exact = exact + (0 if added is None else added.double())
    error = (found.double() - exact).norm(dim=1) / exact.norm(dim=1)
    assert found.shape == (rows, outputs) and float(error.max()) < 4e-3


def test_only_products_that_leave_multiprocessors_idle_go_without_scales() -> None:
    device = torch.device("cuda", 0)
    leaves = float8_linear._leaves_processors_idle
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    assert leaves(1, 128, device) and not leaves(128 * processors, 128, device)


@pytest.mark.parametrize("width", [48, 1536, 14_336])
@pytest.mark.parametrize("rows", [1, 300])
def test_a_gated_product_is_quantized_as_by_plain_operations(rows: int, width: int) -> None:
    both = normal(rows, 2 * width) * 3
    both[0, :width] = 0  # a row whose values are all zero
    found, scale = quantize_gated(both)
    gate, up = both.chunk(2, -1)
    expected, expected_scale = quantize_rows(silu(gate) * up)
    assert torch.allclose(scale, expected_scale, rtol=8e-3)  # one place of bfloat16
    ours, theirs = found.float() * scale, expected.float() * expected_scale
    assert float((ours != theirs).float().mean()) < 0.02
    assert torch.allclose(ours, theirs, rtol=0.13, atol=float(expected_scale.max()) / 256)
    assert not found[0].float().any()


def test_a_model_in_8_bits_is_joined_although_its_last_places_differ() -> None:
    quantization = pytest.importorskip("torchao.quantization")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512, hidden_size=512, intermediate_size=1536, num_hidden_layers=12,
        num_attention_heads=8, num_key_value_heads=2, dtype=torch.bfloat16,
    )  # fmt: skip
    with torch.device("cuda"):
        model: Any = LlamaForCausalLM._from_config(config).bfloat16()
    rows = quantization.PerRow()
    config8 = quantization.Float8DynamicActivationFloat8WeightConfig(granularity=rows)
    quantization.quantize_(
        model, config8, lambda layer, name: type(layer) is nn.Linear and name != "lm_head"
    )
    fit(model)
    assert fuse_linears(model) == 12 * 3
    assert {type(layer.mlp).__name__ for layer in model.model.layers} == {"GatedLlamaMLP"}
