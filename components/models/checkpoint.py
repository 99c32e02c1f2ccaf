"""Finds the weights and tokenizer that a `ModelSpec` asks for, and identifies them unloaded."""

import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from components.models.adapters import base_of, is_adapter, refuse_second_merge
from components.models.architecture import architecture_of, brings_tokenizer
from components.models.foreign_checkpoints import (
    architecture_of_kind,
    folder_of_foreign,
    foreign_kind,
)
from components.models.found_models import refuse_root
from components.models.gguf_folder import folder_for
from components.models.hashes import adapter_hash, tokenizer_folder, tokenizer_hash, weights_hash
from components.models.source import Source, local_folder, locate
from components.models.source_content import (
    dtype_of,
    foreign_hash,
    gguf_hash,
    identity_of,
    is_zero,
    template_identity,
)
from components.models.training_steps import Pick, pick
from components.models.zero_folder import (
    config_folder,
    step_of_tag,
    tokenizer_beside,
    zero_tag,
)
from pipeline.spec import ModelSpec, SpecError, require

_LOG = logging.getLogger(__name__)


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
    weights = locate("model.path", picked.path, revision)
    adapter = locate("model.adapter", spec.adapter, None) if spec.adapter else None
    if _is_adapter(weights):
        rule = f"be null, since {weights.location} is an adapter itself"
        require(adapter is None, "model.adapter", rule, spec.adapter)
        weights, adapter = _base(spec, weights), weights
    rule = "be true where there is no adapter (model.adapter, or model.path one)"
    require(spec.merge_adapter or adapter is not None, "model.merge_adapter", rule, False)
    step = picked.step
    if is_zero(weights):
        weights = _with_config(spec, weights, picked)
        step = step if spec.step is not None else step_of_tag(Path(weights.location))
    architecture = _architecture(spec, weights)
    tokenizer = _tokenizer(spec, [source for source in (adapter, weights) if source], architecture)
    identity = {
        "weights": identity_of(weights, weights_hash, cache),
        "tokenizer": identity_of(tokenizer, tokenizer_hash, cache),
        "chat_template": template_identity(spec.chat_template, tokenizer, cache),
    }
    if adapter:
        identity["adapter"] = identity_of(adapter, adapter_hash, cache)
        refuse_second_merge(local_folder(weights), [identity["adapter"]])
    dtype = dtype_of(weights)
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


def prepare_tokenizer(checkpoint: Checkpoint, cache: Path) -> Checkpoint:
    """As `prepare`, with the weights left as they are."""
    return dataclasses.replace(checkpoint, tokenizer=_converted(checkpoint.tokenizer, cache))


def _converted(source: Source, cache: Path) -> Source:
    if source.kind == "foreign":
        path = Path(source.location)
        kind, content = foreign_kind(path), foreign_hash(source, cache)
        assert kind is not None, "_locate"
        config = Path(source.config) if source.config else None
        return Source("folder", str(folder_of_foreign(path, kind, content, cache, config)))
    if source.kind != "gguf":
        return source
    gguf = Path(source.location)
    return Source("folder", str(folder_for(gguf, gguf_hash(gguf, cache), cache)))


def _architecture(spec: ModelSpec, weights: Source) -> str | None:
    if weights.kind != "foreign":
        return architecture_of(spec, local_folder(weights))
    if weights.config:
        return architecture_of(spec, Path(weights.config))
    kind = foreign_kind(Path(weights.location))
    return architecture_of_kind(kind) if kind else None


def _with_config(spec: ModelSpec, weights: Source, picked: Pick) -> Source:
    """A checkpoint of ZeRO with the config.json beside it, else that of `model.path`."""
    tag = Path(weights.location)
    folder = config_folder(tag)
    if folder is None and spec.path != picked.path and not _is_zero_path(spec.path):
        folder = local_folder(locate("model.path", spec.path, spec.revision))
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
        return locate("model.path", spec.path, spec.revision)
    folder = local_folder(adapter)
    assert folder is not None, "_is_adapter"
    base = base_of(folder)
    try:
        return locate("model.path", base, None)
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
        refuse_root(spec.path)
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
        source = locate("model.tokenizer", spec.tokenizer, None)
        return _own_tokenizer(source) or _no_tokenizer(source)
    for place in places:
        own = _own_tokenizer(place)
        if own:
            return own
    weights = places[-1]
    folder = local_folder(weights)
    if architecture and folder and brings_tokenizer(architecture, folder):
        return Source("architecture", architecture)
    own = _own_tokenizer(locate("model.path", spec.path, spec.revision))
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
    if is_zero(source):
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
