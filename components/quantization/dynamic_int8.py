"""PyTorch's dynamic quantization: int8 weights and activations in linear layers, on a processor."""

from dataclasses import dataclass
from typing import Any

from pipeline.spec import SpecError


@dataclass(frozen=True, slots=True)
class DynamicInt8:
    """`torch.ao.quantization.quantize_dynamic` over all linear layers, the output head included."""

    name: str = "dynamic_int8"

    @property
    def devices(self) -> tuple[str, ...]:
        """PyTorch has these kernels for processors only."""
        return ("cpu",)

    def identity(self) -> dict[str, Any]:
        """What of it makes a row what it is."""
        return {"dtype": "float32", "quantization": self.name}

    def load_kwargs(self) -> dict[str, Any]:
        """What `from_pretrained` is given: the layers are quantized from float32."""
        return {"dtype": "float32"}

    def refuse(self, device: str, capability: float | None, stored: str | None) -> None:
        """Refuse another device than a processor, and weights that are quantized already.

        Raises:
            SpecError: says the reason and the nearest option that can.
        """
        if device != "cpu":
            raise SpecError(
                f"quantization={self.name} does not run on {device}, only on cpu: the nearest that "
                "does is quantization=torchao_int8dyn"
            )
        if stored:
            raise SpecError(
                f"quantization={self.name} must be none for this model, whose weights are stored "
                f"quantized already ({stored})"
            )

    def after_loading(self, model: Any) -> Any:
        """The model with its linear layers replaced.

        Raises:
            SpecError: it has none.
        """
        import torch
        from torch.ao.quantization import quantize_dynamic

        if not any(type(module) is torch.nn.Linear for module in model.modules()):
            raise SpecError(
                f"quantization={self.name} must be none, fp32, fp16 or bf16 for "
                f"{type(model).__name__}, which has no linear layers"
            )
        quantize: Any = quantize_dynamic
        return quantize(model, {torch.nn.Linear}, dtype=torch.qint8, inplace=True)
