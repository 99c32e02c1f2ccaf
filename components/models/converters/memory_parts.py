"""Folders that hold the memory of a model and name its backbone: put together again.

`components/exports/memory_parts.py` writes them. config.json has `base` (as `model.path=` names a
model), `base_sha256` (of its tensors), `dtype`, and the whole model's config under `parts`.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from components.models.architectures.memory_transformer import MemoryTransformerForCausalLM
from components.models.checkpoint import prepare, resolve
from components.models.converters.state_dicts import demand, read_safetensors
from components.models.hashes import tokenizer_folder
from components.models.loading import load_model, quietly
from components.models.memory.config import MemoryTransformerConfig
from components.models.tensors import tensors_hash
from components.models.weight_files import read_json
from components.quantization.precision import Precision
from pipeline.spec import ModelSpec, SpecError

KIND = "memory_parts"  # its model_type
_WEIGHTS = "model.safetensors"


def convert(folder: Path, cache: Path) -> tuple[MemoryTransformerConfig, dict[str, Tensor]]:
    """The config and weights of the whole model.

    Raises:
        SpecError: the base is not within reach, or it is not the one that the parts belong to.
    """
    said = read_json(folder / "config.json")
    base, wanted, dtype, given = (said.get(k) for k in ("base", "base_sha256", "dtype", "parts"))
    kind = getattr(torch, str(dtype), None)
    if not isinstance(base, str) or not isinstance(given, dict) or kind is None:
        raise SpecError(f"{folder}/config.json must have base, base_sha256, dtype and parts")
    try:
        backbone = base_tensors(base, kind, cache)
    except SpecError as error:
        raise SpecError(
            f"model.path={folder} is a memory for the base {base!r}, which is not within reach: "
            f"put the base there, or write where it is into base in {folder}/config.json. {error}"
        ) from error
    if tensors_hash(backbone) != wanted:
        raise SpecError(
            f"{folder}/config.json: base must be the model that this memory was trained on, and "
            f"the weights of {base!r} are others"
        )
    config: Any = MemoryTransformerConfig.from_dict(given)
    parts = read_safetensors(folder / _WEIGHTS)
    state = {f"backbone.{name}": tensor for name, tensor in backbone.items()} | parts
    with torch.device("meta"):
        model = MemoryTransformerForCausalLM(config)
    shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        shapes.pop("backbone.lm_head.weight", None)
        state.pop("backbone.lm_head.weight", None)
    demand(state, shapes, folder / _WEIGHTS)
    config.dtype = kind
    return config, state


def tokenizer(folder: Path) -> PreTrainedTokenizerBase | None:
    """The tokenizer in the folder, if it has one."""
    own = tokenizer_folder(folder)
    with quietly():  # it would say of our config.json that it is of no model that it knows
        made: PreTrainedTokenizerBase | None = AutoTokenizer.from_pretrained(own) if own else None
    return made


def base_tensors(base: str, dtype: torch.dtype, cache: Path) -> dict[str, Tensor]:
    """The weights of a base, in a type. Raises SpecError where it is not within reach."""
    spec = ModelSpec(path=base)
    as_asked: Any = Precision(str(dtype).removeprefix("torch."))
    ready = prepare(resolve(spec, cache), cache)
    return dict(load_model(ready, spec, as_asked, torch.device("cpu")).state_dict())
