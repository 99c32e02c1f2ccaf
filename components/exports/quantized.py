"""A model with weights that a library has quantized, as a folder that loads as it is."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.exports.chosen_model import ChosenModel
from components.exports.reloading import difference_when_reloaded, logits_of
from components.quantization.precision import Precision
from pipeline.spec import SpecError


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
        report, expected = weights_report(model), logits_of(model)
        del model
        what = f"quantization={chosen.quantization.name}"
        difference = difference_when_reloaded(chosen, folder, expected, what, self.device)
        return {"weights": report, "reloaded_logits_differ_by": difference}
