"""LoRA adapters: folders that hold changes to a base model's weights, and name that model."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.models.weight_files import check_texts, read_json, refuse_pointer
from pipeline.spec import SpecError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CONFIG = "adapter_config.json"
EXPORT_RECORD = "export.json"  # which an exported folder has: among others, what is merged into it
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter and no model of its own."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


def base_of(folder: Path) -> str:
    """The base model that an adapter names: a hub id, or a path where it was trained.

    Raises:
        SpecError: it names none.
    """
    base = read_json(folder / CONFIG).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise SpecError(
            f"{folder / CONFIG} names no base model: set model.path to the base and "
            f"model.adapter={folder}"
        )
    return base


def refuse_second_merge(weights: Path | None, names: Iterable[str | None]) -> None:
    """Refuse an adapter that is part of the weights already: it would be added twice.

    Args:
        weights: the folder of the weights, if they lie in one.
        names: hashes and commits by which the adapter is known.

    Raises:
        SpecError: the export that made the folder merged it.
    """
    record = weights / EXPORT_RECORD if weights else None
    there = read_json(record).get("adapters") if record and record.is_file() else None
    if isinstance(there, list) and set(names) & set(map(str, there)):
        raise SpecError(
            f"model.adapter must be null: {record} says that this adapter is merged into these "
            "weights already"
        )


def merged(model: "PreTrainedModel", folder: Path) -> "PreTrainedModel":
    """The model with an adapter's changes added to its weights, in the type of its weights.

    The sum is made in float32: in bfloat16 it would be rounded twice.

    Raises:
        SpecError: peft is not installed, the adapter does not fit the model, or its files are
            broken.
    """
    import torch

    dtype = model.dtype
    whole: Any = model.to(torch.float32)  # type: ignore[arg-type]
    wrapped = _wrapped(whole, folder)
    merged_model: PreTrainedModel = wrapped.merge_and_unload(safe_merge=True).to(dtype)
    return merged_model


def unmerged(model: "PreTrainedModel", folder: Path) -> "PreTrainedModel":
    """The model with an adapter beside its weights, which stay as they are, quantized or not.

    Raises:
        SpecError: as `merged`; or the adapter also changes what is not a layer, such as the
            prompt, which only the wrapper around the whole model does.
    """
    wrapped = _wrapped(model, folder)
    kind = wrapped.active_peft_config
    if kind.is_prompt_learning:
        raise SpecError(
            f"model.adapter={folder} must be one of layers, such as LoRA, got "
            f"{kind.peft_type.value}, which changes the prompt"
        )
    with_layers: PreTrainedModel = wrapped.get_base_model()
    return with_layers


def _wrapped(model: Any, folder: Path) -> Any:
    """The model in peft's wrapper, every tensor of the adapter in its place; see `merged`."""
    try:
        from peft import PeftModel
    except ImportError as error:
        raise SpecError(
            f"model.adapter={folder} needs peft: pip install 'rethink-pipeline[lora]'"
        ) from error
    _check(folder)
    where = str(model.device)  # else peft reads it into the first GPU that it finds
    try:
        wrapped = PeftModel.from_pretrained(model, str(folder), torch_device=where)
        result: Any = wrapped.load_adapter(str(folder), "default", torch_device=where)
    except (RuntimeError, ValueError, KeyError, TypeError, OSError) as error:
        raise SpecError(
            f"model.adapter={folder} does not fit the model {type(model).__name__}: {error}"
        ) from error
    lost = sorted({*result.missing_keys, *result.unexpected_keys})
    if lost:
        raise SpecError(
            f"model.adapter={folder} must fit the model {type(model).__name__}: "
            f"{len(lost)} of its tensors do not, such as {lost[0]}"
        )
    return wrapped


def _check(folder: Path) -> None:
    check_texts(folder)
    weights = [folder / name for name in _WEIGHTS if (folder / name).is_file()]
    if not weights:
        raise SpecError(f"model.adapter={folder} must hold {' or '.join(_WEIGHTS)}")
    refuse_pointer(weights[0])
