"""A LoRA adapter merged into its base: one model that needs no peft."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.exports.chosen_model import ChosenModel
from components.models.hashes import adapter_hash
from components.models.source import local_folder
from pipeline.spec import SpecError


@dataclass(frozen=True, slots=True)
class Merged:
    """peft's own merge, in float32, then the type that `quantization=` says.

    The LoRA updates of a memory-augmented model are merged when its checkpoint is converted.
    """

    name: str = "merged"

    def check(self, chosen: ChosenModel) -> None:
        """Refuse a model without an adapter, and quantized weights.

        Raises:
            SpecError: says what to choose instead.
        """
        instead = "merged into quantized weights, an adapter is rounded away; to=quantized merges"
        chosen.require_plain(self.name, f"{instead} it first, then quantizes")
        if chosen.checkpoint.adapter is None and not _may_have_its_own(chosen):
            raise SpecError(
                f"to=merged needs an adapter, and {chosen.spec.path} has none to merge: set "
                "model.adapter, or take to=safetensors"
            )

    def write(self, chosen: ChosenModel, folder: Path) -> dict[str, Any]:
        """Write the merged model. Returns the names by which a second merge is known.

        Raises:
            SpecError: the adapter does not fit, or a part of it is left over.
        """
        model: Any = chosen.load()
        adapter = chosen.checkpoint.adapter
        if adapter is None:
            _forget_own(model, chosen)
        left = [name for name in model.state_dict() if "lora_" in name]
        if left:
            raise SpecError(f"to=merged left {len(left)} tensors unmerged, such as {left[0]}")
        chosen.save(model, folder)
        if adapter is None:
            return {}
        here = local_folder(adapter)
        names = {chosen.checkpoint.identity["adapter"]}
        names |= {f"sha256:{adapter_hash(here, chosen.cache)}"} if here else set()
        return {"adapters": sorted(filter(None, names))}


def _may_have_its_own(chosen: ChosenModel) -> bool:
    """Whether it is a checkpoint of a kind whose state dicts may hold LoRA updates."""
    architecture = chosen.checkpoint.architecture or ""
    foreign = chosen.checkpoint.weights.kind == "foreign"
    return foreign and architecture.endswith(".memory_transformer")


def _forget_own(model: Any, chosen: ChosenModel) -> None:
    """Take LoRA out of the config of a memory-augmented model, whose weights have it merged."""
    memory = dict(model.config.memory)
    if not memory.pop("use_lora", False):
        raise SpecError(
            f"to=merged needs an adapter, and {chosen.spec.path} was trained without LoRA "
            "(memory.use_lora): take to=safetensors"
        )
    model.config.memory = memory
