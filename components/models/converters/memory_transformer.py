"""Checkpoint folders of memory-augmented transformers, for Transformers.

A folder (`checkpoint-<step>`, `best_model`, `final_model`) has `config.yaml` with the groups
`model`, `memory` and `training`, and a plain state dict in `model.pt`, `model.safetensors` or
`pytorch_model.bin`, looked for in this order. LoRA updates are merged; quantized banks stay so.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoTokenizer,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedTokenizerBase,
)

from components.models.architectures.memory_transformer import MemoryTransformerForCausalLM
from components.models.converters.state_dicts import (
    demand,
    read_pickle,
    read_safetensors,
    unwrapped,
)
from components.models.hashes import tokenizer_folder
from components.models.memory.config import MemoryTransformerConfig
from components.models.memory.settings import MemorySettings
from pipeline.spec import SpecError

_WEIGHTS = ("model.pt", "model.safetensors", "pytorch_model.bin")
_BLOCK = ("memory_layernorm.", "memory_attn.", "post_memory_layernorm.", "post_memory_mlp.")


def convert(folder: Path) -> tuple[MemoryTransformerConfig, dict[str, Tensor]]:
    """The config and weights of a checkpoint folder.

    Raises:
        SpecError: a file is missing or torn, a key is unknown, or weights do not fit the config.
    """
    groups = _yaml(folder / "config.yaml")
    config = _config(groups, folder)
    settings = config.settings()
    path = next((folder / name for name in _WEIGHTS if (folder / name).is_file()), None)
    if path is None:
        raise SpecError(f"model.path={folder} must hold one of {', '.join(_WEIGHTS)}")
    read = read_safetensors if path.suffix == ".safetensors" else read_pickle
    saved = read(path)
    if not isinstance(saved, Mapping):
        raise SpecError(f"{path} must hold a state dict, got {type(saved)}")
    state = _with_scales(_merged(unwrapped(saved, path), settings, path))
    config.memory = _as_stored(config.memory, state)
    state = {_ours(name, config.adapter): tensor for name, tensor in state.items()}
    state = {name: tensor for name, tensor in state.items() if not name.endswith(".inv_freq")}
    with torch.device("meta"):
        model = MemoryTransformerForCausalLM(config)
    shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        shapes.pop("backbone.lm_head.weight")
        state.pop("backbone.lm_head.weight", None)
    demand(state, shapes, path)
    config.dtype = next(tensor.dtype for tensor in state.values() if tensor.is_floating_point())
    return config, state


def tokenizer(folder: Path) -> PreTrainedTokenizerBase | None:
    """The tokenizer in the folder, else the one that its config names; None where it names none.

    Raises:
        SpecError: the config names one that is not within reach.
    """
    model = _yaml(folder / "config.yaml")["model"] or {}
    name = tokenizer_folder(folder) or model.get("tokenizer_name") or model.get("base_model_name")
    if name is None:
        return None
    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise SpecError(
            f"{folder}/config.yaml: model.tokenizer_name must name a folder or a hub id within "
            f"reach, got {str(name)!r}; or name one with model.tokenizer: {error}"
        ) from error


def _yaml(path: Path) -> dict[str, Any]:
    try:
        groups = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise SpecError(f"{path} is not YAML: {error}") from error
    return groups if isinstance(groups, dict) else {}


def _config(groups: dict[str, Any], folder: Path) -> MemoryTransformerConfig:
    model, memory = dict(groups["model"] or {}), dict(groups["memory"] or {})
    base = model.get("base_model_name")
    backbone = _from_scratch(model) if base is None else _pretrained(base, folder)
    return MemoryTransformerConfig(
        backbone=backbone.to_diff_dict() | {"model_type": backbone.model_type},
        memory=memory,
        adapter=base is not None,
        base=base,
        architectures=["MemoryTransformerForCausalLM"],
    )


def _pretrained(base: str, folder: Path) -> PretrainedConfig:
    try:
        return AutoConfig.from_pretrained(base)
    except (OSError, ValueError) as error:
        raise SpecError(
            f"{folder}/config.yaml: model.base_model_name must name a folder or a hub id within "
            f"reach, whose config.json tells the backbone, got {base!r}: {error}"
        ) from error


def _from_scratch(model: dict[str, Any]) -> LlamaConfig:
    """The backbone of a model trained whole: a Llama of its sizes."""
    for key, wanted in (
        ("use_rope", True),
        ("use_rms_norm", True),
        ("hidden_activation", "swiglu"),
    ):
        if model.get(key, wanted) != wanted:
            raise SpecError(f"model.{key} must be {wanted} to be loaded, got {model[key]!r}")
    heads = model.get("num_heads", 12)
    return LlamaConfig(
        vocab_size=model.get("vocab_size", 32000),
        hidden_size=model.get("hidden_dim", 768),
        intermediate_size=model.get("intermediate_dim", 3072),
        num_hidden_layers=model.get("num_layers", 12),
        num_attention_heads=heads,
        num_key_value_heads=model.get("num_kv_heads") or heads,
        max_position_embeddings=model.get("max_position_embeddings")
        or model.get("max_seq_len", 8192),
        rms_norm_eps=model.get("norm_eps", 1e-6),
        rope_parameters={"rope_type": "default", "rope_theta": model.get("rope_theta", 10000.0)},
        tie_word_embeddings=model.get("tie_embeddings", True),
        **{k: model[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id") if model.get(k)},
    )


def _merged(state: dict[str, Tensor], settings: MemorySettings, path: Path) -> dict[str, Tensor]:
    """The state with every LoRA update added to its weight: W + B @ A * alpha / rank."""
    updates = [name.removesuffix("lora_A") for name in state if name.endswith(".lora_A")]
    plain = {k: v for k, v in state.items() if not k.endswith((".lora_A", ".lora_B"))}
    scale = settings.lora_alpha / settings.lora_rank
    for name in updates:
        weight, up = plain.get(f"{name}weight"), state.get(f"{name}lora_B")
        if weight is None or up is None:
            raise SpecError(f"{path} has {name}lora_A without {name}weight and {name}lora_B")
        update = up.float() @ state[f"{name}lora_A"].float() * scale
        plain[f"{name}weight"] = (weight.float() + update).to(weight.dtype)
    return plain


def _with_scales(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state with the scales of quantized banks by our name, as [rows, 1] in float32."""
    renamed = {}
    for name, tensor in state.items():
        prefix = name.removesuffix("scales")
        if prefix != name and f"{prefix}quantized_memory" in state:
            renamed[f"{prefix}memory_scales"] = tensor.float().reshape(-1, 1)
        else:
            renamed[name] = tensor
    return renamed


def _as_stored(memory: dict[str, Any], state: dict[str, Tensor]) -> dict[str, Any]:
    """The `memory` group with what the weights say of quantization, whatever training was told.

    Signed bytes are 8 bit, others two numbers of 4. The original spells factors out before it
    quantizes, so that a quantized bank is whole.
    """
    stored = [tensor for name, tensor in state.items() if name.endswith(".quantized_memory")]
    if not stored:
        return memory | {"quantize_memory": False}
    bits = 8 if stored[0].dtype == torch.int8 else 4
    whole = {"quantize_memory": True, "memory_quant_bits": bits}
    if memory.get("low_rank_mode", "factorized") == "factorized":
        whole["use_low_rank_memory"] = False
    return memory | whole


def _ours(name: str, adapter: bool) -> str:
    """A parameter's name in our model."""
    if name.startswith(("memory_banks.", "routers.", "memory_adapters.")):
        return name
    if adapter:
        return f"backbone.{name.removeprefix('base_model.')}"
    head, _, rest = name.partition(".")
    number, _, inside = rest.partition(".")
    if head == "layers" and inside.startswith(_BLOCK):
        return f"memory_adapters.{number}.{inside}"
    return f"backbone.{name}" if head == "lm_head" else f"backbone.model.{name}"
