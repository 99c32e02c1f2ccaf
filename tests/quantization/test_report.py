"""Bytes of a model by part: every storage once, and each in the part that its name says."""

from collections.abc import Callable
from math import ceil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from components.models.checkpoint import prepare, resolve
from components.models.loading import load_model
from components.quantization.dynamic_int8 import DynamicInt8
from components.quantization.report import PARTS, part_of, weights_report
from launch.config.compose import build, to_spec
from pipeline.spec import ModelSpec
from tests.fakes.configs import composed
from tests.fakes.tiny_models import ARCHITECTURES, FIELDS, tiny
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


SIZES = {"hidden_size": 64, "intermediate_size": 128, "attention_bias": True}
HIDDEN, BETWEEN, KEYS, WORDS, LAYERS = 64, 128, 32, 49_152, 2  # of `tiny_models.FIELDS`
# [outputs, inputs] of a layer's linear layers, of which the first four have biases.
SHAPES = [(HIDDEN, HIDDEN), (KEYS, HIDDEN), (KEYS, HIDDEN), (HIDDEN, HIDDEN)]
SHAPES += [(BETWEEN, HIDDEN), (BETWEEN, HIDDEN), (HIDDEN, BETWEEN)]


def expected_bytes(option: str, tied: bool) -> int:
    """Bytes of a tiny Llama with biases, by what each library says that it stores."""
    numbers = sum(rows * columns for rows, columns in SHAPES) * LAYERS
    rows = sum(rows for rows, _ in SHAPES) * LAYERS
    kept = (sum(rows for rows, _ in SHAPES[:4]) + 2 * HIDDEN) * LAYERS + HIDDEN  # biases, norms
    words = WORDS * HIDDEN
    rotation = 2 * 4 * (HIDDEN // 4 // 2)  # two float32 buffers
    blocks = sum(ceil(r * c / 64) for r, c in SHAPES) * LAYERS  # one absmax each
    groups = sum(ceil(r * c / 64 / 256) for r, c in SHAPES) * LAYERS
    tables = len(SHAPES) * LAYERS * (16 + 256 + 1) * 4  # codes of both steps, and an offset
    halves = (words * (1 if tied else 2) + kept) * 2
    whole = (words * (1 if tied else 2) + kept) * 4
    return (
        rotation
        + {
            "fp32": whole + numbers * 4,
            "bf16": halves + numbers * 2,
            "bnb_int8": halves + numbers + rows * 4,
            "bnb_nf4": halves + numbers // 2 + blocks + groups * 4 + tables,
            "torchao_int8wo": whole + numbers + rows * (4 + 1),  # and a zero point of a byte
            "torchao_int8dyn": whole + numbers + rows * (4 + 1),
            "torchao_fp8wo": whole + numbers + rows * 4,
            "dynamic_int8": (words + kept) * 4
            + numbers
            + words,  # the head is quantized, and untied
        }[option]
    )


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    "option",
    [
        "fp32",
        "bf16",
        "bnb_int8",
        "bnb_nf4",
        "torchao_int8wo",
        "torchao_int8dyn",
        "torchao_fp8wo",
        "dynamic_int8",
    ],
)
def test_bytes_are_those_that_the_format_of_each_option_says(
    tiny_llama: Callable[..., Path], option: str, tied: bool
) -> None:
    pytest.importorskip("bitsandbytes", reason="the extra `quantization` is not installed")
    pytest.importorskip("torchao", reason="the extra `quantization` is not installed")
    folder = tiny_llama(tie_word_embeddings=tied, **SIZES)
    spec = ModelSpec(name="m", path=str(folder))
    node = to_spec(composed("task=math", f"quantization={option}")).quantization
    checkpoint = prepare(resolve(spec, folder), folder)
    made = load_model(checkpoint, spec, build("quantization", node), torch.device("cpu"))
    assert sum(weights_report(made)["bytes"].values()) == expected_bytes(option, tied)


def test_fused_experts_that_a_library_leaves_whole_are_told_as_kept(
    smollm2: Path, tmp_path: Path
) -> None:
    pytest.importorskip("torchao", reason="the extra `quantization` is not installed")
    folder = tiny("qwen3_moe", smollm2, tmp_path / "moe")
    spec = ModelSpec(name="m", path=str(folder))
    node = to_spec(composed("task=math", "quantization=torchao_int8wo")).quantization
    checkpoint = prepare(resolve(spec, tmp_path), tmp_path)
    made = load_model(checkpoint, spec, build("quantization", node), torch.device("cpu"))
    report = weights_report(made)
    experts = {name: count for name, count in report["kept"].items() if "experts" in name}
    assert experts == {
        "model.layers.*.mlp.experts.down_proj": 2,
        "model.layers.*.mlp.experts.gate_up_proj": 2,
    }
    assert report["quantized"]["model.layers.*.self_attn.q_proj"] == 2


def test_plain_models_of_other_kinds_count_every_tensor_once(smollm2: Path, tmp_path: Path) -> None:
    kinds: dict[str, dict[str, Any]] = {
        "qwen3_moe": {},
        "gemma3_text": {"head_dim": 16, "sliding_window": 8, "layer_types": None},
        "mamba": {"state_size": 8, "time_step_rank": 4},
        "lfm2": {"layer_types": ["conv", "full_attention"]},
    }
    for kind, fields in kinds.items():
        config = AutoConfig.for_model(kind, **FIELDS | ARCHITECTURES.get(kind, {}) | fields)
        made = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        storages = {
            each.untyped_storage().data_ptr(): each.nbytes
            for each in [*made.parameters(), *made.buffers()]
        }
        report = weights_report(made)
        assert sum(report["bytes"].values()) == sum(storages.values()), kind
        matrices = [n for n, p in made.named_parameters(remove_duplicate=False) if p.ndim >= 2]
        biases = [name for name in matrices if "bias" in name]
        assert sum(report["kept"].values()) == len(matrices) - len(biases), kind


def test_an_unmerged_adapter_counts_as_what_it_is(tiny_llama: Callable[..., Path]) -> None:
    peft = pytest.importorskip("peft", reason="the extra `lora` is not installed")
    base = AutoModelForCausalLM.from_pretrained(tiny_llama(**SIZES))
    before = sum(weights_report(base)["bytes"].values())
    made = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"]))
    report = weights_report(made)
    added = 4 * 4 * LAYERS * ((HIDDEN + HIDDEN) + (HIDDEN + BETWEEN))
    assert report["parts"]["lora"] == {"float32": added}
    assert sum(report["bytes"].values()) == before + added
