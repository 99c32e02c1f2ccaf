"""Tiny random models of several architectures, which speak with SmolLM2's tokenizer."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, BertConfig, BertModel

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "mistral": {"sliding_window": None, "head_dim": 16},
    "gemma": {"head_dim": 32, "num_key_value_heads": 1},
    "phi3": {"sliding_window": None},
    "qwen3": {"head_dim": 32},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "qwen3_moe": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "head_dim": 32,
    },
}
FIELDS: dict[str, Any] = {
    "vocab_size": 49152,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "initializer_range": 0.6,
}


def tiny(kind: str, tokenizer: Path, folder: Path, seed: int = 7, **fields: Any) -> Path:
    """A random float32 model of one architecture in `folder`; `fields` are its config's."""
    config = AutoConfig.for_model(kind, **FIELDS | ARCHITECTURES.get(kind, {}) | fields)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tokenizer / name, folder / name)
    return folder


def tiny_encoder(tokenizer: Path, folder: Path, seed: int = 7) -> Path:
    """A random float32 BERT in `folder`, which reads 512 tokens, with SmolLM2's tokenizer."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "pad_token_id": 2, "initializer_range": 0.6}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = BertModel(BertConfig(vocab_size=FIELDS["vocab_size"], **sizes, **heads))
    model.save_pretrained(folder)
    shutil.copy(tokenizer / "tokenizer.json", folder)
    settings = json.loads((tokenizer / "tokenizer_config.json").read_text("utf-8"))
    settings["padding_side"] = "right"  # as encoders have it: their positions count from the left
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    return folder


def random_adapter(base: Path, folder: Path, seed: int = 0) -> Path:
    """An adapter of `base` with random factors, and dropout, which only training has."""
    from peft import LoraConfig, get_peft_model  # of the extra `lora`

    torch.manual_seed(seed)
    config = LoraConfig(target_modules="all-linear", lora_dropout=0.5, task_type="CAUSAL_LM")
    config.init_lora_weights = False
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).save_pretrained(folder)
    return folder
