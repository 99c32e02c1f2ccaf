"""Architectures that Transformers does not know, which a module registers when it is imported.

Such a module calls `AutoConfig.register`, `AutoModelForCausalLM.register` and, where it has a
tokenizer of its own, `AutoTokenizer.register`.
"""

import importlib
import importlib.util
from pathlib import Path

from components.models.weight_files import read_json
from pipeline.spec import ModelSpec, SpecError, require

_OURS = "components.models.architectures"


def architecture_of(spec: ModelSpec, folder: Path | None) -> str | None:
    """The module that must be imported before the model is loaded, or None.

    It is the one that `model.architecture` names: a file of components/models/architectures/ by
    its short name, else any module that can be imported. Without that key it is the file of ours
    that is called like the `model_type` in the folder's config.json.

    Raises:
        SpecError: `model.architecture` names no module.
    """
    if spec.architecture is None:
        model_type = _model_type(folder) if folder else None
        return _module(model_type, inside=_OURS) if model_type else None
    module = _module(spec.architecture, inside=_OURS) or _module(spec.architecture)
    rule = f"name a module that can be imported, or a file of {_OURS.replace('.', '/')}/"
    require(module is not None, "model.architecture", rule, spec.architecture)
    return module


def register(module: str) -> None:
    """Import a module, which registers its classes with Transformers.

    Raises:
        SpecError: something that the module imports is not installed.
    """
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise SpecError(f"model.architecture={module} cannot be imported: {error}") from error


def brings_tokenizer(module: str, folder: Path) -> bool:
    """Whether the module registers a tokenizer for the `model_type` of a model folder."""
    register(module)
    from transformers import AutoConfig
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING

    return type(AutoConfig.from_pretrained(folder)) in TOKENIZER_MAPPING


def _model_type(folder: Path) -> str | None:
    config = folder / "config.json"
    model_type = read_json(config).get("model_type") if config.is_file() else None
    return model_type if isinstance(model_type, str) and model_type.isidentifier() else None


def _module(name: str, inside: str = "") -> str | None:
    """The full name of a module that exists, or None; its parents are imported, not itself."""
    full = f"{inside}.{name}" if inside else name
    try:
        return full if importlib.util.find_spec(full) else None
    except (ImportError, ValueError):
        return None
