"""Tiny memory-augmented transformers, and their checkpoint folders as the original writes them."""

from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor
from transformers import LlamaConfig, Qwen2Config

from components.models.architectures.memory_transformer import MemoryTransformerForCausalLM
from components.models.memory.config import MemoryTransformerConfig

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
CHAPTERS = {
    "use_chapters": True,
    "num_memory_tokens": 40,
    "num_chapters": 10,
    "top_k_chapters": 3,
    "num_shared_chapters": 2,
    "routed_scaling_factor": 2.5,
    "memory_layer_placement": "custom",
    "memory_layer_indices": [0, 2],
}


def model(
    adapter: bool = True, seed: int = 0, vocabulary: int = 61, **memory: Any
) -> MemoryTransformerForCausalLM:
    kind: Any = Qwen2Config if adapter else LlamaConfig
    backbone = kind(**SIZES | {"vocab_size": vocabulary}, tie_word_embeddings=not adapter)
    config = MemoryTransformerConfig(
        backbone=backbone.to_diff_dict() | {"model_type": backbone.model_type},
        memory={"num_memory_tokens": 12, **memory},
        adapter=adapter,
    )
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    made = MemoryTransformerForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            wide = 0.3 if "norm" not in name else 0.1
            weight.copy_(torch.randn_like(weight) * wide + (1.0 if "norm" in name else 0.0))
    return made


def written(folder: Path, made: MemoryTransformerForCausalLM, **state: Tensor) -> Path:
    """A checkpoint folder as the original writes it; its backbone's config lies in `base`."""
    folder.mkdir(parents=True)
    group: dict[str, Any] = {"base_model_name": str(folder.parent / "base")}
    if made.config.adapter:
        made.backbone.config.save_pretrained(folder.parent / "base")
    else:
        names = ("vocab_size", "num_layers", "num_heads", "num_kv_heads")
        ours = ("vocab_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
        group = {n: SIZES[o] for n, o in zip(names, ours, strict=True)}
        group |= {"hidden_dim": 32, "intermediate_dim": 48, "max_seq_len": 4096}
    memory = dict(made.config.memory)
    groups = {"model": group, "memory": memory, "training": {"lr": 1e-4}}
    (folder / "config.yaml").write_text(yaml.safe_dump(groups))
    theirs = {_theirs(k, made.config.adapter): v for k, v in made.state_dict().items()}
    torch.save(theirs | state, folder / "model.pt")
    return folder


def _theirs(name: str, adapter: bool) -> str:
    if adapter:
        return name.replace("backbone.", "base_model.") if name.startswith("backbone.") else name
    if name.startswith("memory_adapters."):
        return name.replace("memory_adapters.", "layers.")
    return name.removeprefix("backbone.").removeprefix("model.")
