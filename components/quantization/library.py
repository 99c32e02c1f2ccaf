"""Weights that a library quantizes while they are loaded."""

import importlib.metadata
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any

from components.quantization.precision import DTYPES
from pipeline.spec import SpecError, require

EXTRA = "pip install 'rethink-pipeline[quantization]'"


@dataclass(frozen=True, slots=True)
class LibraryQuantization:
    """An option of bitsandbytes or torchao, applied by Transformers to linear layers.

    Embeddings, norms and the output head keep `dtype`.

    Attributes:
        name: the option's name in `conf/quantization/`.
        config: the dotted name of the library's own config class.
        arguments: of that class.
        dtype: of all other weights and of the products; None: the checkpoint's own.
        devices: kinds of device that the library has kernels for.
        capability: the least CUDA compute capability that they need, as major.minor.
        instead: the nearest option for a device that this one does not run on.
    """

    name: str
    config: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    dtype: str | None = None
    devices: tuple[str, ...] = ()
    capability: float = 0.0
    instead: str = "bf16"

    def __post_init__(self) -> None:
        """Check the values; nothing is imported."""
        require(bool(self.name), "quantization.name", "name the option", self.name)
        dotted = "." in self.config
        require(dotted, "quantization.config", "be the dotted name of a class", self.config)
        known = self.dtype is None or self.dtype in DTYPES
        require(known, "quantization.dtype", f"be null or one of {DTYPES}", self.dtype)
        object.__setattr__(self, "devices", tuple(self.devices))  # a list, from YAML

    @property
    def library(self) -> str:
        """The package that quantizes."""
        package = self.config.partition(".")[0]
        return "bitsandbytes" if package == "transformers" else package

    def identity(self) -> dict[str, Any]:
        """What of it makes a row what it is: the library's class and its arguments."""
        return {
            "dtype": self.dtype or "checkpoint",
            "quantization": self.name,
            "quantization_config": self.config.rpartition(".")[2],
            "quantization_arguments": dict(self.arguments),
        }

    def load_kwargs(self) -> dict[str, Any]:
        """What `from_pretrained` is given.

        Raises:
            SpecError: the library is missing, has no such class, or refuses the arguments.
        """
        if importlib.util.find_spec(self.library) is None:
            raise SpecError(f"quantization={self.name} needs {self.library}: {EXTRA}")
        return {"dtype": self.dtype or "auto", "quantization_config": self._library_config()}

    def refuse(self, device: str, capability: float | None, stored: str | None) -> None:
        """Refuse what cannot work, before anything is loaded.

        Args:
            device: the kind of device that the model goes to: cpu, cuda, mps.
            capability: of a CUDA device, as major.minor; else None.
            stored: how the checkpoint's weights are quantized already, or None.

        Raises:
            SpecError: says the reason and the nearest option that can.
        """
        nearest = f"the nearest that does is quantization={self.instead}"
        if stored:
            raise SpecError(
                f"quantization={self.name} must be none for this model, whose weights are stored "
                f"quantized already ({stored})"
            )
        if self.devices and device not in self.devices:
            kinds = " or ".join(self.devices)
            raise SpecError(
                f"quantization={self.name} does not run on {device}, only on {kinds}: {nearest}"
            )
        if capability is not None and capability < self.capability:
            raise SpecError(
                f"quantization={self.name} needs a GPU of compute capability {self.capability} or "
                f"more, and this one has {capability}: {nearest}"
            )

    def after_loading(self, model: Any) -> Any:
        """The model itself: its weights are quantized while they are loaded.

        Raises:
            SpecError: the library has left every layer whole, as torchao does in silence where
                their inputs are no multiple of its groups.
        """
        from components.quantization.report import weights_report

        if not weights_report(model)["quantized"]:
            raise SpecError(
                f"quantization={self.name} must be another for {type(model).__name__}: "
                f"{self.library} leaves every layer of it whole with {dict(self.arguments)}; the "
                f"nearest is quantization={self.instead}"
            )
        return model

    def _value(self, value: Any) -> Any:
        """An argument; a dotted name of the library stands for an object of that class."""
        named = isinstance(value, str) and value.startswith(f"{self.library}.")
        return resolve_name(value)() if named else value

    def _library_config(self) -> Any:
        try:
            arguments = {key: self._value(value) for key, value in self.arguments.items()}
            config = resolve_name(self.config)(**arguments)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            version = importlib.metadata.version(self.library)
            raise SpecError(
                f"quantization={self.name}: {self.config} of {self.library} {version} refuses "
                f"{dict(self.arguments)}: {error}"
            ) from error
        if self.library != "torchao":
            return config
        from transformers import TorchAoConfig

        return TorchAoConfig(config)
