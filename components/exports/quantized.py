"""A model with weights that a library has quantized, as a folder that loads as it is."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.exports.chosen_model import ChosenModel
from components.models.checkpoint import Checkpoint, Source
from components.quantization.precision import Precision
from pipeline.spec import SpecError

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

_CLOSE = 1e-3  # of a logit; on one device the reloaded weights give the same ones
_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Quantized:
    """Quantized while loading, saved, loaded again, and compared.

    `device` is where it is quantized: some kinds of weights exist on a GPU only.
    """

    device: str = "cpu"
    name: str = "quantized"

    def check(self, chosen: ChosenModel) -> None:
        """Refuse what no library can load again.

        Raises:
            SpecError: says what to choose instead.
        """
        chosen_name = chosen.quantization.name
        if isinstance(chosen.quantization, Precision):
            raise SpecError(
                f"to=quantized must have a quantization=bnb_nf4, torchao_int8wo or another of a "
                f"library, got {chosen_name}: to=safetensors saves floating-point weights"
            )
        if "quantization_config" not in chosen.quantization.load_kwargs():
            raise SpecError(
                f"quantization={chosen_name} cannot be saved: Transformers cannot load it again. "
                "The nearest that can is quantization=torchao_int8dyn"
            )

    def write(self, chosen: ChosenModel, folder: Path) -> dict[str, Any]:
        """Write the model, and load it again.

        It is saved before its first forward pass: bitsandbytes' 4-bit layers pack their weights
        anew in it, and what is saved afterwards is not what they hold.

        Raises:
            SpecError: it cannot be saved, or what is loaded again computes other logits.
        """
        from components.quantization.report import weights_report

        model = chosen.load(self.device)
        chosen.save(model, folder)
        report = weights_report(model)
        expected = _logits(model)
        del model
        found = _logits(_saved(chosen, folder).load(self.device))
        difference = float((found - expected).abs().max())
        if not difference <= _CLOSE:
            raise SpecError(
                f"quantization={chosen.quantization.name} does not survive being saved: the "
                f"reloaded model's logits are {difference:.3g} off. Quantize while loading instead"
            )
        return {"weights": report, "reloaded_logits_differ_by": difference}


def _saved(chosen: ChosenModel, folder: Path) -> ChosenModel:
    source = Source("folder", str(folder))
    as_it_is: Any = Precision()
    checkpoint = Checkpoint(source, source, 0, {}, architecture=chosen.checkpoint.architecture)
    return dataclasses.replace(chosen, checkpoint=checkpoint, quantization=as_it_is)


def _logits(model: "PreTrainedModel") -> "Tensor":
    """Logits [tokens, vocabulary] of a few ids, in float32 on the processor."""
    import torch

    ids = torch.arange(_TOKENS, device=model.device)[None]
    forward: Any = model
    with torch.inference_mode():
        logits: Tensor = forward(input_ids=ids).logits[0].float().cpu()
    return logits
