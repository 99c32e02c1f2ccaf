"""Bytes of a model by part: every storage once, and each in the part that its name says."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from components.quantization.dynamic_int8 import DynamicInt8
from components.quantization.report import PARTS, part_of, weights_report
from tests.models.test_memory_transformer import CHAPTERS, model


def bytes_of(made: nn.Module, *starts: str) -> int:
    named = dict([*made.named_parameters(), *made.named_buffers()])
    return sum(t.nbytes for name, t in named.items() if name.startswith(starts))


def test_a_memory_model_is_told_by_its_parts() -> None:
    made = model(**CHAPTERS)
    parts = weights_report(made)["parts"]
    sizes = {part: sum(kinds.values()) for part, kinds in parts.items()}
    assert list(parts) == ["base", "memory_bank", "memory_attention", "router"]
    assert sizes["memory_bank"] == bytes_of(made, "memory_banks.") > 0
    assert sizes["memory_attention"] == bytes_of(made, "memory_adapters.") > 0
    assert sizes["router"] == bytes_of(made, "routers.") > 0
    assert sizes["base"] == bytes_of(made, "backbone.") > 0


def test_a_bank_held_as_a_quantized_buffer_counts() -> None:
    made = model(**CHAPTERS)
    before = weights_report(made)["parts"]["memory_bank"]
    bank: Any = made.memory_banks["0"].base_bank
    size = bank.memory.numel()
    del bank.memory
    bank.register_buffer("packed", torch.zeros(size, dtype=torch.int8))
    after = weights_report(made)["parts"]["memory_bank"]
    assert after["int8"] == size and before["float32"] - after.get("float32", 0) == 4 * size


def test_parts_hold_what_the_types_hold_and_an_adapter_is_apart() -> None:
    config = AutoConfig.for_model(
        "llama", vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    made = AutoModelForCausalLM.from_config(config)
    plain = weights_report(made)
    assert set(plain["parts"]) == {"base", "other"}  # the rotation's buffers
    made.model.layers[0].self_attn.q_proj.lora_A = nn.Linear(16, 4, bias=False)
    report = weights_report(made)
    assert report["parts"]["lora"] == {"float32": 16 * 4 * 4}
    total = sum(sum(kinds.values()) for kinds in report["parts"].values())
    assert total == sum(report["bytes"].values())


def test_packed_layers_of_one_size_count_each_with_their_biases() -> None:
    """A packed weight comes out as a copy, and copies of one size take each other's address."""
    made = DynamicInt8().after_loading(nn.Sequential(*(nn.Linear(256, 64) for _ in range(20))))
    assert weights_report(made)["bytes"] == {"int8": 20 * 256 * 64, "float32": 20 * 64 * 4}


@pytest.mark.parametrize(
    ("name", "has_memory", "part"),
    [
        ("memory_banks.0.base_bank.A", True, "memory_bank"),
        ("memory_banks.0.base_bank.A", False, "base"),
        ("backbone.layers.0.q.lora_B.default.weight", True, "lora"),
        ("routers.3.router.bias", True, "router"),
        ("scale", True, "other"),
    ],
)
def test_a_name_says_the_part(name: str, has_memory: bool, part: str) -> None:
    assert part_of(name, has_memory, True) == part and part in PARTS
