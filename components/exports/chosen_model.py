"""The model that is exported: what was asked for, loaded as a run loads it, and saved."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from components.models.checkpoint import Checkpoint, prepare
from components.models.hashes import TOKENIZER_FILES
from components.models.source import local_folder
from components.models.weight_files import quantization_method
from components.quantization.precision import Precision
from pipeline.spec import ModelSpec, SpecError, require

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from components.models.loading import LoadableQuantization

PLAIN = "none, fp32, bf16 or fp16"


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """A model as `model=` and `quantization=` choose it, not loaded yet.

    `checkpoint` is what `components.models.checkpoint.resolve` returned.
    """

    spec: ModelSpec
    quantization: "LoadableQuantization"
    checkpoint: Checkpoint
    cache: Path

    def require_plain(self, to: str, instead: str) -> None:
        """Refuse a quantization that is no plain floating-point type. Raises SpecError."""
        if not isinstance(self.quantization, Precision):
            raise SpecError(
                f"to={to} must have quantization={PLAIN}, got {self.quantization.name}: {instead}"
            )

    def stored_quantization(self) -> str | None:
        """How the checkpoint's weights are quantized already (`gptq`, ...), or None."""
        folder = local_folder(prepare(self.checkpoint, self.cache).weights)
        return quantization_method(folder) if folder else None

    def require_memory(self, to: str) -> None:
        """Refuse a model that has no memory of the kind of our architecture. Raises SpecError."""
        if not (self.checkpoint.architecture or "").endswith(".memory_transformer"):
            raise SpecError(
                f"to={to} must have a memory-augmented model, and {self.spec.path} has no memory: "
                "take to=safetensors"
            )

    def load(self, device: str = "cpu") -> "PreTrainedModel":
        """The model, its adapter merged; the same weights that a run computes with.

        Raises:
            SpecError: it cannot be loaded.
        """
        import torch

        from components.models.loading import load_model

        rule = "be true: an export has the adapter in its weights"
        require(self.spec.merge_adapter, "model.merge_adapter", rule, False)
        ready = prepare(self.checkpoint, self.cache)
        return load_model(ready, self.spec, self.quantization, torch.device(device))

    def save(self, model: "PreTrainedModel", folder: Path) -> None:
        """Write weights, config, tokenizer, chat template and generation config to a folder.

        Tokenizer and generation config are the checkpoint's own files, byte for byte: Transformers
        writes a tokenizer in its own way. Tied weights are written once.

        Raises:
            SpecError: the weights cannot be saved.
        """
        from components.models.loading import quietly

        try:
            with quietly():
                model.save_pretrained(folder)
        except (NotImplementedError, ValueError, RuntimeError) as error:
            raise SpecError(f"the weights of {self.spec.name} cannot be saved: {error}") from error
        self.copy_texts(folder)

    def copy_texts(self, folder: Path) -> None:
        """Copy what stands beside weights: tokenizer, template, generation config, code."""
        ready = prepare(self.checkpoint, self.cache)
        weights = local_folder(ready.weights)
        if weights:
            _copy(weights, folder, ["generation_config.json"])
            _copy(weights, folder, [path.name for path in weights.glob("*.py")])
        tokenizer = self._tokenizer_folder(ready)
        if tokenizer:
            _copy(tokenizer, folder, TOKENIZER_FILES)
        if self.spec.chat_template:
            given = Path(self.spec.chat_template).expanduser()
            shutil.copyfile(given, folder / "chat_template.jinja")

    def _tokenizer_folder(self, ready: Checkpoint) -> Path | None:
        """Where its files are; None for a tokenizer that needs none."""
        if ready.tokenizer.kind == "hub":
            from components.models.tokenizer_loading import load_tokenizer

            load_tokenizer(ready, self.spec)  # brings the files here
        return local_folder(ready.tokenizer)


class Export(Protocol):
    """One way to write a model for elsewhere."""

    @property
    def name(self) -> str:
        """The option's name in `conf/to/`."""

    def check(self, chosen: ChosenModel) -> None:
        """Refuse what cannot be exported so, before anything is loaded. Raises SpecError."""

    def write(self, chosen: ChosenModel, folder: Path) -> dict[str, Any]:
        """Write the files into an empty folder. Returns what export.json says besides of them."""


def _copy(source: Path, target: Path, names: Any) -> None:
    for name in names:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
