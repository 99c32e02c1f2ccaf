"""The memory of a memory-augmented model without its backbone, and the name of that backbone."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.exports.chosen_model import ChosenModel
from components.models.checkpoint import resolve
from components.models.converters.memory_parts import KIND, base_tensors
from pipeline.spec import ModelSpec, SpecError

_BACKBONE = "backbone."


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """Banks, routers, norms, attention, second MLPs; and what in the backbone is not the base's.

    The folder is loaded by `model.path=`: the base that it names, with the parts added.

    Attributes:
        base: the backbone as `model.path=` would name it; None: what the checkpoint calls it.
    """

    base: str | None = None
    name: str = "memory"

    def check(self, chosen: ChosenModel) -> None:
        """Refuse a model without memory. Raises SpecError."""
        chosen.require_plain(self.name, "parts are added to a base in floating point")
        chosen.require_memory(self.name)

    def write(self, chosen: ChosenModel, folder: Path) -> dict[str, Any]:
        """Write the parts.

        Returns:
            `base`, and the `changed` tensors of the backbone that had to be written too, since
            training or LoRA changed them.

        Raises:
            SpecError: the base is not named, not within reach, or no backbone of this model.
        """
        from components.models.tensors import tensors_hash

        model: Any = chosen.load()
        named = self.base or model.config.base
        if not named:
            raise SpecError(
                f"to.base must name the backbone of {chosen.spec.path}, which its checkpoint does "
                "not: a hub id or a folder"
            )
        base = _where(named)
        resolve(ModelSpec(path=base), chosen.cache)  # refuses what is not there by its own words
        theirs = base_tensors(base, model.dtype, chosen.cache)
        state = model.state_dict()
        ours = {k.removeprefix(_BACKBONE): v for k, v in state.items() if k.startswith(_BACKBONE)}
        changed = _changed(ours, theirs, base)
        if model.config.tie_word_embeddings:
            changed = [name for name in changed if not name.startswith("lm_head.")]
        parts = {k: v for k, v in state.items() if not k.startswith(_BACKBONE)}
        parts |= {f"{_BACKBONE}{name}": ours[name] for name in changed}
        _save(parts, folder)
        config = {
            "model_type": KIND,
            "base": base,
            "base_sha256": tensors_hash(theirs),
            "dtype": str(model.dtype).removeprefix("torch."),
            "parts": json.loads(model.config.to_json_string()),
        }
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        chosen.copy_texts(folder)
        return {"base": base, "changed": changed}


def _where(base: str) -> str:
    """A folder by its full path, since the export lies elsewhere; anything else as it is."""
    path = Path(base).expanduser()
    return str(path.absolute()) if path.exists() else base


def _changed(ours: dict[str, Any], theirs: dict[str, Any], base: str) -> list[str]:
    """Names of the backbone's tensors that are not those of the base.

    Raises:
        SpecError: the two are models of different shapes.
    """
    import torch

    other = [
        name
        for name in sorted(ours.keys() | theirs.keys())
        if name not in ours or name not in theirs or ours[name].shape != theirs[name].shape
    ]
    if other:
        raise SpecError(
            f"to.base={base} is not the backbone of this model: {len(other)} tensors are others, "
            f"such as {other[0]}"
        )
    return [name for name in sorted(ours) if not torch.equal(ours[name], theirs[name])]


def _save(tensors: dict[str, Any], folder: Path) -> None:
    from safetensors.torch import save_file

    whole = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})
