"""Weights in a plain floating-point type."""

from dataclasses import dataclass
from typing import Any

from pipeline.spec import require

DTYPES = ("float32", "bfloat16", "float16")
NAMES = {None: "none", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True, slots=True)
class Precision:
    """The type that weights are loaded in; None: the checkpoint's own."""

    dtype: str | None = None

    def __post_init__(self) -> None:
        """Check the name."""
        known = self.dtype is None or self.dtype in DTYPES
        require(known, "quantization.dtype", f"be null or one of {DTYPES}", self.dtype)

    @property
    def name(self) -> str:
        """The name of the option, as `conf/quantization/` has it."""
        return NAMES[self.dtype]

    @property
    def devices(self) -> tuple[str, ...]:
        """Any device computes in these types."""
        return ()

    def load_kwargs(self) -> dict[str, Any]:
        """What `from_pretrained` is given."""
        return {"dtype": self.dtype or "auto"}

    def refuse(self, device: str, capability: float | None, stored: str | None) -> None:
        """Every device computes in these types, and weights that are quantized keep theirs."""

    def after_loading(self, model: Any) -> Any:
        """The model itself."""
        return model

    def identity(self) -> dict[str, Any]:
        """What of it makes a row what it is."""
        return {"dtype": self.dtype or "checkpoint"}
