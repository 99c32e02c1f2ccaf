"""A memory-augmented model with its banks at 8 or 4 bit."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.exports.chosen_model import ChosenModel
from components.exports.reloading import difference_when_reloaded, logits_of
from pipeline.spec import SpecError

if TYPE_CHECKING:
    from torch import Tensor, nn

BITS = (8, 4)


@dataclass(frozen=True, slots=True)
class QuantizedMemory:
    """The whole model; its banks symmetric per row, factors as factors, the rest as it was.

    What is read becomes numbers again where it is read, in the model's type.
    """

    bits: int = 8
    name: str = "memory_quantized"

    def check(self, chosen: ChosenModel) -> None:
        """Refuse a model without memory, and other numbers of bits. Raises SpecError."""
        if self.bits not in BITS:
            raise SpecError(f"to.bits must be 8 or 4, got {self.bits}")
        chosen.require_plain(self.name, "it is the memory that is quantized here")
        chosen.require_memory(self.name)

    def write(self, chosen: ChosenModel, folder: Path) -> dict[str, Any]:
        """Write the model, and load it again.

        Returns:
            `memory`: per bank and matrix, bytes before and after and the relative error; `parts`:
            bytes of the model by part, before and after.

        Raises:
            SpecError: there are no banks, or they are quantized already.
        """
        from components.quantization.report import weights_report

        model: Any = chosen.load()
        if model.settings.quantize_memory or not len(model.memory_banks):
            why = "is quantized already" if len(model.memory_banks) else "has no banks"
            raise SpecError(f"to=memory_quantized must have a memory to quantize, and it {why}")
        before = weights_report(model)["parts"]
        told = quantize_memory(model, self.bits)
        after = weights_report(model)["parts"]
        chosen.save(model, folder)
        expected = logits_of(model)
        del model
        what = f"to.bits={self.bits}"
        return {
            "memory": told,
            "parts": {"before": before, "after": after},
            "reloaded_logits_differ_by": difference_when_reloaded(chosen, folder, expected, what),
        }


def quantize_memory(model: Any, bits: int) -> dict[str, dict[str, float]]:
    """Replace a model's banks by quantized ones, in place. Returns what became of each matrix.

    Raises:
        SpecError: at 4 bit, a matrix has rows of odd length.
    """
    from components.models.memory.bank import bank_of

    memory = model.config.memory | {"quantize_memory": True, "memory_quant_bits": bits}
    model.config.memory = memory
    model.settings = model.config.settings()
    told = {}
    for number, bank in list(model.memory_banks.items()):
        quantized = bank_of(model.settings)
        for name, matrix in list(bank.named_parameters()):
            told[f"{number}.{name}"] = _replace(quantized, name, matrix.detach(), bits)
        model.memory_banks[number] = quantized.to(matrix.device)
    return told


def _replace(bank: "nn.Module", name: str, matrix: "Tensor", bits: int) -> dict[str, float]:
    """Fill one matrix of a quantized bank. Returns its bytes before and after and its error."""
    import torch

    from components.models.memory.quantized_rows import dequantize_rows, quantize_rows

    stored, scales = quantize_rows(matrix, bits)
    prefix, _, last = name.rpartition(".")
    place = bank.get_submodule(prefix)
    place.get_buffer(f"quantized_{last}").copy_(stored)
    place.get_buffer(f"{last}_scales").copy_(scales)
    exact = matrix.float()
    error = dequantize_rows(stored, scales, torch.float32) - exact
    return {
        "bytes_before": matrix.nbytes,
        "bytes_after": stored.nbytes + scales.nbytes,
        "relative_error": round(float(error.norm() / exact.norm().clamp(min=1e-30)), 6),
    }
