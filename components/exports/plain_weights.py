"""A model as a folder of safetensors, in the type that `quantization=` says."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.exports.chosen_model import ChosenModel


@dataclass(frozen=True, slots=True)
class PlainWeights:
    """Weights in a floating-point type, config, tokenizer, chat template, generation config.

    Also what turns a GGUF file or another project's checkpoint into a folder for Transformers.
    """

    name: str = "safetensors"

    def check(self, chosen: ChosenModel) -> None:
        """Refuse a quantization that is no plain type. Raises SpecError."""
        chosen.require_plain(self.name, "to=quantized saves quantized weights")

    def write(self, chosen: ChosenModel, folder: Path) -> dict[str, Any]:
        """Write the model. Raises SpecError where it cannot be loaded."""
        chosen.save(chosen.load(), folder)
        return {}
