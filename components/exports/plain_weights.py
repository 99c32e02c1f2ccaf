"""A model as a folder of safetensors, in the type that `quantization=` says."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.exports.chosen_model import ChosenModel
from pipeline.spec import SpecError

# Stored weights that Transformers makes floating-point ones of while it loads them.
_DEQUANTIZED = ("fp8", "mxfp8", "mxfp4")


@dataclass(frozen=True, slots=True)
class PlainWeights:
    """Weights in a floating-point type, config, tokenizer, chat template, generation config.

    Also what turns a GGUF file, another project's checkpoint, or one that is stored in fine-grained
    FP8 or MXFP4 into a folder for Transformers.
    """

    name: str = "safetensors"

    def check(self, chosen: ChosenModel) -> None:
        """Refuse a quantization that is no plain type, and weights that are stored in one.

        Raises:
            SpecError: says what to take instead.
        """
        chosen.require_plain(self.name, "to=quantized saves quantized weights")
        stored = chosen.stored_quantization()
        if stored and stored not in _DEQUANTIZED:
            raise _stay_quantized(stored)

    def write(self, chosen: ChosenModel, folder: Path) -> dict[str, Any]:
        """Write the model. Raises SpecError where it cannot be loaded as floating-point weights."""
        from components.models.stored_quantization import stored_quantization

        model = chosen.load()
        stored = stored_quantization(model.config)
        if stored:
            raise _stay_quantized(stored)
        chosen.save(model, folder)
        return {}


def _stay_quantized(stored: str) -> SpecError:
    return SpecError(
        f"to=safetensors writes floating-point weights, and these are stored quantized ({stored}) "
        "and stay so: take the model that they were made from, or copy the folder as it is"
    )
