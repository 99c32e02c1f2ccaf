"""Names of quantizations that no library offers, each with what to choose instead."""

from dataclasses import dataclass
from typing import Any

from pipeline.spec import SpecError


@dataclass(frozen=True, slots=True)
class Refused:
    """A known name that cannot be honoured; choosing it ends the run with the reason."""

    name: str
    reason: str
    devices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse."""
        raise SpecError(f"quantization={self.name} cannot be honoured: {self.reason}")

    def identity(self) -> dict[str, Any]:
        """Nothing has this quantization."""
        return {}
