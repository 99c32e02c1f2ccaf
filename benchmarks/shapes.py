"""Models of a given shape with random weights, and prompts of a given length."""

import dataclasses
import json
import random
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from components.backends.hf.backend import HfBackend
from components.backends.hf.processor import has_bfloat16
from components.decoding.sequence import Limits
from components.quantization.library import LibraryQuantization

SHAPES: dict[str, dict[str, Any]] = {
    "qwen2.5-1.5b": {
        "model_type": "qwen2",
        "vocab_size": 151_936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
        "max_position_embeddings": 32_768,
    },
    "llama-3.1-8b": {
        "model_type": "llama",
        "vocab_size": 128_256,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 32_768,
    },
    "smollm2-135m": {
        "model_type": "llama",
        "vocab_size": 49_152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "tie_word_embeddings": True,
        "max_position_embeddings": 8192,
    },
    "tiny": {
        "model_type": "qwen2",
        "vocab_size": 50_000,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}
_SPREAD = 5.0  # standard deviation of logits
_WORDS = (
    "red blue green river mountain seven apple house garden winter summer letter number paper "
    "window silver golden ocean forest stone music story doctor teacher student king queen"
).split()


def folder_for(shape: str, tokenizer: Path, folder: Path) -> Path:
    """A model folder with a config and a byte-level tokenizer as large as the vocabulary."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = dict(SHAPES[shape])
    spelled = json.loads((tokenizer / "tokenizer.json").read_text())
    known = spelled["model"]["vocab"]
    # Filler ids are spelled like words, so that a generation of any ids has a text.
    known |= {f"\u0120w{n}": n for n in range(len(known), fields["vocab_size"])}
    (folder / "tokenizer.json").write_text(json.dumps(spelled))
    shutil.copy(tokenizer / "tokenizer_config.json", folder / "tokenizer_config.json")
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    config.save_pretrained(folder)
    (folder / "model.safetensors").write_bytes(b"")  # named by its identity, never read
    return folder


class RandomBackend(HfBackend):
    """Decodes with random weights: nothing but a config and a tokenizer is read."""

    def _load_model(self) -> PreTrainedModel:
        config = AutoConfig.from_pretrained(self._spec.path)
        # Wide enough for the next token's distribution to be about as narrow as a trained model's.
        torch.manual_seed(0)
        with torch.device(self._device):
            named = self._quantization.load_kwargs()["dtype"]
            dtype = getattr(torch, "bfloat16" if named == "auto" else named)
            model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        size = model.config.get_text_config().hidden_size
        model.get_output_embeddings().weight.data.mul_(_SPREAD / (0.02 * size**0.5))
        self._quantize(model)
        model.generation_config.eos_token_id = None
        model.train(False)
        if self._device.type == "cpu" and not has_bfloat16():
            model.float()
        return model

    def _quantize(self, model: PreTrainedModel) -> None:
        """Quantize all linear layers but the output head, as Transformers does while loading."""
        if not isinstance(self._quantization, LibraryQuantization):
            return
        from torchao.quantization import quantize_

        head = model.get_output_embeddings()
        config = self._quantization.load_kwargs()["quantization_config"].quant_type
        quantize_(model, config, lambda layer, _: type(layer) is nn.Linear and layer is not head)


def endless(backend: HfBackend) -> None:
    """No id ends a row of an entered backend any more: every row gets as long as its cap."""
    assert backend._limits is not None
    backend._limits = Limits(frozenset(), backend._limits.context)


def prompts(count: int, words: int, seed: int = 1) -> list[str]:
    """Different texts of `words` words, each one token long."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(_WORDS, k=words)) for _ in range(count)]


def lengths(count: int, mean: float, cap: int) -> list[int]:
    """Log-normal output lengths of about this mean, cut at `cap`."""
    rng = random.Random(2)
    made = [rng.lognormvariate(0, 0.6) for _ in range(count)]
    low, high = 0.0, 1e6
    for _ in range(60):
        scale = (low + high) / 2
        found = sum(min(cap, scale * x) for x in made) / count
        low, high = (scale, high) if found < mean else (low, scale)
    return [max(1, min(cap, round(scale * x))) for x in made]


@dataclasses.dataclass(frozen=True)
class Workload:
    """`count` prompts of `words` words, each with `samples` outputs of the given lengths."""

    count: int
    samples: int
    mean: float
    cap: int
    batch: int  # rows of a static batch of the others
    words: int = 200

    @property
    def caps(self) -> list[int]:
        """The length of every output."""
        rows = self.count * self.samples
        return [self.cap] * rows if self.mean == self.cap else lengths(rows, self.mean, self.cap)
