"""BDH model folders and training checkpoints of the original and its fork, for Transformers.

A folder has `config.json` and `model.safetensors` or `model.pt`, or training checkpoints such as
`checkpoint-0001000.pt` (`model_state_dict` and `step`) beside its `config.json`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from components.models.architectures.bdh import BdhConfig, BdhForCausalLM
from components.models.architectures.byte_tokenizer import byte_tokenizer
from components.models.converters.state_dicts import (
    demand,
    read_pickle,
    read_safetensors,
    unwrapped,
)
from components.models.hashes import tokenizer_folder
from components.models.weight_files import read_json
from pipeline.spec import SpecError

_SIZES = ("n_layer", "n_embd", "n_head", "mlp_internal_dim_multiplier", "vocab_size", "dropout")
_WEIGHTS = ("model.safetensors", "model.pt")


def convert(path: Path) -> tuple[BdhConfig, dict[str, Tensor]]:
    """The config and weights of a folder, or of one training checkpoint in it.

    Raises:
        SpecError: weights are missing, torn, or do not fit the config.
    """
    folder = path if path.is_dir() else path.parent
    values = _config(folder)
    sizes = {name: values[name] for name in _SIZES if name in values}
    ends = {name: values[name] for name in ("bos_token_id", "eos_token_id") if name in values}
    path = _weights(folder) if path.is_dir() else path
    state = _state(path)
    dtype = str(state["decoder"].dtype).removeprefix("torch.") if "decoder" in state else None
    config = BdhConfig(**sizes, **ends, dtype=dtype, architectures=["BdhForCausalLM"])
    if config.num_neurons % 2:
        raise SpecError(f"{folder}/config.json must give an even number of neurons a head")
    state.pop("lm_gate", None)  # an unused parameter of early revisions
    _check_frequencies(state.pop("attn.freqs", None), config, path)
    demand(state, _shapes(config), path)
    return config, state


def tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder: its own files, else the bytes of UTF-8.

    Raises:
        SpecError: there are no files, and the config says that the model does not read bytes.
    """
    folder = path if path.is_dir() else path.parent
    own = tokenizer_folder(folder)
    if own is not None:
        return PreTrainedTokenizerFast.from_pretrained(own)
    values = _config(folder)
    kind, size = values.get("tokenizer_type", "byte"), values.get("vocab_size", 256)
    if kind != "byte" or size != 256:
        raise SpecError(
            f"{folder} must hold the files of its {kind} tokenizer of {size} entries, in itself or "
            "in a folder `tokenizer`: or name one with model.tokenizer"
        )
    return byte_tokenizer()


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    return read_json(path) if path.is_file() else {}


def _weights(folder: Path) -> Path:
    for name in _WEIGHTS:
        if (folder / name).is_file():
            return folder / name
    steps = ", ".join(sorted(path.name for path in folder.glob("checkpoint-*.pt")))
    told = f"; it has {steps}: choose one with model.step" if steps else ""
    raise SpecError(f"model.path={folder} must hold {' or '.join(_WEIGHTS)}{told}")


def _state(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        return unwrapped(read_safetensors(path), path)
    saved = read_pickle(path)
    if not isinstance(saved, Mapping):
        raise SpecError(f"{path} must hold a state dict, got {type(saved)}")
    return unwrapped(saved.get("model_state_dict", saved), path)


def _check_frequencies(stored: Tensor | None, config: BdhConfig, path: Path) -> None:
    """The rotary frequencies follow from the sizes; others would be another model."""
    if stored is None:
        return
    with torch.device("meta"):
        model = BdhForCausalLM(config)
    expected = model._frequencies(torch.device("cpu"))
    same = stored.numel() == expected.numel() and torch.allclose(
        stored.reshape(-1).float(), expected, rtol=1e-2 if stored.dtype != torch.float32 else 1e-5
    )
    if not same:
        raise SpecError(f"{path} has rotary frequencies (attn.freqs) that its config does not give")


def _shapes(config: BdhConfig) -> dict[str, list[int]]:
    heads, size, neurons = config.num_attention_heads, config.hidden_size, config.num_neurons
    return {
        "embed.weight": [config.vocab_size, size],
        "encoder": [heads, size, neurons],
        "encoder_v": [heads, size, neurons],
        "decoder": [heads * neurons, size],
        "lm_head": [size, config.vocab_size],
    }
