"""Checkpoints in the layouts of other projects: what tells them, and the folders made from them.

Recognising one reads small files only and imports no torch. The converters do the rest.
"""

import importlib
from pathlib import Path
from typing import Any

import yaml

from components.models.converted_folder import converted_folder
from components.models.weight_files import read_json
from components.models.zero_folder import zero_tag
from pipeline.spec import SpecError

KINDS = ("bdh", "mini_llm", "memory_transformer", "memory_parts", "zero")
_CONVERTERS = "components.models.converters"
_VERSION = 2  # of the conversions; a higher number converts again


def foreign_kind(path: Path) -> str | None:
    """Which of KINDS a folder, or one training checkpoint in it, holds; None for a usual model.

    Raises:
        SpecError: its files say two things.
    """
    if zero_tag(path) is not None:
        return "zero"
    folder = path if path.is_dir() else path.parent
    config = folder / "config.json"
    values = read_json(config) if config.is_file() else {}
    signs = {
        "bdh": "n_embd" in values and "mlp_internal_dim_multiplier" in values,
        "mini_llm": values.get("model_type") == "mini-llm"
        or (not values and (folder / "ckpt.pt").is_file()),
        "memory_transformer": path.is_dir() and _has_memory_groups(folder / "config.yaml"),
        "memory_parts": values.get("model_type") == "memory_parts",
        "Transformers": values.get("model_type") not in (None, "bdh", "mini-llm", "memory_parts"),
    }
    kinds = [kind for kind, sign in signs.items() if sign]
    if len(kinds) > 1:
        raise SpecError(
            f"model.path={path} must hold one kind of checkpoint, and has the files of "
            f"{' and of '.join(kinds)}: move those of one elsewhere"
        )
    return kinds[0] if kinds and kinds[0] in KINDS else None


def architecture_of_kind(kind: str) -> str | None:
    """The module that registers a kind's model class; None where it becomes a usual one."""
    if kind in ("mini_llm", "zero"):
        return None
    name = "memory_transformer" if kind == "memory_parts" else kind
    return f"components.models.architectures.{name}"


def folder_of_foreign(
    path: Path, kind: str, content: str, cache: Path, config: Path | None = None
) -> Path:
    """The safetensors folder of a foreign checkpoint, made if it is not in `cache` yet.

    Args:
        path: the checkpoint: a folder, or a file of weights beside its config.json.
        kind: one of KINDS.
        content: hash of its files, which names the folder.
        cache: the cache folder.
        config: the folder of config.json, for a checkpoint of ZeRO.

    Raises:
        SpecError: the checkpoint cannot be converted, or `cache` cannot be written.
    """
    whole = path.is_dir() and config is None
    name = path.name if whole else f"{path.parent.name}-{path.stem}"
    target = cache / "models" / f"{kind}-{name}-{content[:16]}-v{_VERSION}"
    try:
        return converted_folder(
            target, str(path), lambda folder: _convert(path, kind, folder, config or cache)
        )
    except OSError as error:
        raise SpecError(
            f"{path} could not be converted into run.cache_dir={str(cache)!r}: {error}"
        ) from error


def _convert(path: Path, kind: str, folder: Path, beside: Path) -> None:
    """Write `folder`; `beside` is the cache, or the folder of a ZeRO checkpoint's config.json."""
    from safetensors.torch import save_file

    converter: Any = importlib.import_module(f"{_CONVERTERS}.{kind}")
    needs_more = kind in ("memory_parts", "zero")  # the first loads a base from the cache
    config, state = converter.convert(path, beside) if needs_more else converter.convert(path)
    folder.mkdir()
    config.save_pretrained(folder)
    tensors = {name: tensor.contiguous().clone() for name, tensor in state.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer = converter.tokenizer(path)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


def _has_memory_groups(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        groups = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        return False
    return isinstance(groups, dict) and {"model", "memory"} <= groups.keys()
