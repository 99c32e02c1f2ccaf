"""8-bit products of torchao's layers: the layers' own, inputs quantized once for all."""

import importlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from components.backends.hf.slots.attention import ProbeFrame, compile_layers, using_frame
from components.backends.hf.slots.fit import fit, fuse_linears
from components.backends.hf.slots.float8_linear import Float8Product, is_float8, quantize_rows
from components.backends.hf.slots.fused_linear import FusedLinears, SharedInputs
from components.backends.hf.slots.gated_float8 import GatedLayers


@pytest.fixture(scope="module")
def float8() -> Callable[..., nn.Linear]:
    """`float8(outputs, bias)`: torchao's layer of 64 inputs, as a GPU would have it."""
    from torchao.float8.inference import Float8MMConfig
    from torchao.quantization import PerRow
    from torchao.quantization.quantize_.workflows.float8.float8_tensor import (
        Float8Tensor,
        QuantizeTensorToFloat8Kwargs,
    )

    seeds = itertools.count()

    def make(outputs: int, bias: bool = False) -> nn.Linear:
        torch.manual_seed(next(seeds))
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


class FeedForward(nn.Module):
    """down(activation(gate(x)) * up(x)), as most models have it."""

    def __init__(self, float8: Callable[..., nn.Linear], activation: nn.Module, bias: bool) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = float8(64, bias), float8(64, bias)
        self.down_proj, self.act_fn = float8(64, bias), activation

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The layer's output."""
        out: torch.Tensor = self.down_proj(self.act_fn(self.gate_proj(input)) * self.up_proj(input))
        return out


def joined(layer: nn.Module, given: torch.Tensor) -> tuple[GatedLayers, FusedLinears]:
    """The model of this one layer with its products joined, as `fit.fuse_linears` does."""
    readers, gated = SharedInputs(), GatedLayers()
    model = nn.ModuleList([layer])
    with readers.watching(model), gated.watching(model):
        layer(given)
    groups = readers.groups()
    gated.find(groups)
    fused = FusedLinears(groups)
    gated.join()
    return gated, fused


@pytest.mark.parametrize("bias", [False, True])
@torch.inference_mode()
def test_a_feed_forward_layer_gated_by_silu_gives_the_same_as_one_operation(
    bias: bool, float8: Callable[..., nn.Linear]
) -> None:
    layer = FeedForward(float8, nn.SiLU(), bias)
    given = torch.randn(3, 5, 64).bfloat16()
    expected = layer(given)
    gated, fused = joined(layer, given[0])
    calls: list[Any] = []
    layer.act_fn.register_forward_hook(lambda *_: calls.append(1))
    assert type(layer) is not FeedForward and torch.equal(layer(given), expected)
    assert not calls
    assert [name for name, _ in layer.named_parameters() if "weight" in name] == [
        "gate_proj.weight", "up_proj.weight", "down_proj.weight"
    ]  # fmt: skip
    gated.undo()
    fused.undo()
    assert type(layer) is FeedForward and torch.equal(layer(given), expected) and calls


@torch.inference_mode()
def test_a_feed_forward_layer_with_another_activation_is_left_as_it_is(
    float8: Callable[..., nn.Linear],
) -> None:
    layer, given = FeedForward(float8, nn.GELU(), False), torch.randn(5, 64).bfloat16()
    expected = layer(given)
    joined(layer, given)
    assert type(layer) is FeedForward and torch.equal(layer(given), expected)


def model_of(float8: Callable[..., nn.Linear]) -> Any:
    """A Llama of two layers whose products are in 8 bits, with the decoder's attention."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, dtype=torch.bfloat16,
    )  # fmt: skip
    model: Any = LlamaForCausalLM._from_config(config).bfloat16()
    for layer in model.model.layers:
        for block in (layer.self_attn, layer.mlp):
            for name in [
                name for name, child in block.named_children() if type(child) is nn.Linear
            ]:
                setattr(block, name, float8(64))
    fit(model)
    return model


def test_a_model_in_8_bits_keeps_its_logits_and_is_compiled_into_one_program(
    float8: Callable[..., nn.Linear],
) -> None:
    model = model_of(float8)
    expected = logits(model)
    assert fuse_linears(model) == 6
    assert [type(layer.mlp).__name__ for layer in model.model.layers] == 2 * ["GatedLlamaMLP"]
    assert torch.equal(logits(model), expected)
    compile_layers(model)
    torch._dynamo.utils.counters.clear()
    logits(model)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def logits(model: Any) -> torch.Tensor:
    """Logits of a few ids."""
    ids = torch.arange(7)[None]
    with torch.inference_mode(), using_frame(ProbeFrame()):
        found: torch.Tensor = model(ids, position_ids=ids, use_cache=False).logits
    return found


@pytest.mark.parametrize("wrong", ["fused_linear.Float8Product", "gated_float8.quantize_gated"])
def test_joined_products_that_give_something_else_are_taken_apart_again_and_the_log_says_so(
    wrong: str,
    float8: Callable[..., nn.Linear],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = model_of(float8)
    expected = logits(model)
    module, name = wrong.split(".")
    place = importlib.import_module(f"components.backends.hf.slots.{module}")
    real = getattr(place, name)

    class Doubled(Float8Product):
        def __call__(self, input: torch.Tensor) -> torch.Tensor:
            """Twice what it is to give."""
            return 2 * super().__call__(input)

    def doubled(product: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows, scale = real(product)
        return rows, 2 * scale

    monkeypatch.setattr(place, name, Doubled if isinstance(real, type) else doubled)
    assert fuse_linears(model) == 0
    what = "Linear" if isinstance(real, type) else "GatedLlamaMLP"
    assert f"products stay apart, which is slower: joined, what {what}" in caplog.text.replace(
        "_Fused", ""
    )
    assert type(model.model.layers[0].mlp).__name__ == "LlamaMLP"
    assert torch.equal(logits(model), expected)
