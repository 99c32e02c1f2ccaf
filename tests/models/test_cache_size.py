"""The estimate of a sequence's cache, against what Transformers' caches hold after a call."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from components.models.architectures.bdh import BdhConfig, BdhForCausalLM
from components.models.architectures.outputs import cache_of
from components.models.cache_size import cache_bytes, cache_report

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "pad_token_id": 0,
}
MLA = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4}
EXPERTS = {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gpt2": {"n_layer": 2, "n_embd": 32, "n_head": 4},
    "mistral": {"sliding_window": 16},
    "gemma3_text": {"sliding_window": 16, "head_dim": 16, "sliding_window_pattern": 2},
    "qwen3": {"head_dim": 32},
    "deepseek_v3": {**MLA, **EXPERTS, "v_head_dim": 12, "num_key_value_heads": 4},
}


def made(kind: str, dtype: torch.dtype = torch.float32) -> Any:
    sizes = {"vocab_size": 64} if kind == "gpt2" else SIZES
    config = AutoConfig.for_model(kind, **(sizes | KINDS[kind]))
    return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def held(model: Any, length: int) -> int:
    """Bytes in the cache after a sequence."""
    ids = torch.ones(1, length, dtype=torch.int64)
    with torch.inference_mode():
        cache: Any = cache_of(model(input_ids=ids, use_cache=True))
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [5, 40])
def test_it_is_what_the_cache_holds(kind: str, length: int) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        model = made(kind, dtype)
        assert cache_bytes(model, length) == held(model, length)


def test_a_state_has_one_size_whatever_the_length() -> None:
    model = BdhForCausalLM(BdhConfig(n_layer=2, n_embd=16, mlp_internal_dim_multiplier=8))
    layer = 4 * (8 * 16 // 4) * 16 * 4  # heads, neurons, width, float32
    assert cache_bytes(model, 1) == cache_bytes(model, 9999) == 2 * layer


def test_a_report_ends_with_the_positions_that_the_model_has() -> None:
    model = made("llama")
    assert list(cache_report(model)["bytes_of_sequence"]) == ["1024", "2048"]


def test_layers_that_keep_something_else_are_named() -> None:
    model = made("llama")
    model.config.layer_types = ["full_attention", "linear_attention"] * 2
    report = cache_report(model)
    assert report["bytes_of_sequence"] is None
    assert "linear_attention" in report["unknown_because"]
