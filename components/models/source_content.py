"""What the files of a source are, whatever they are called and wherever they lie."""

from collections.abc import Callable
from pathlib import Path

from components.models.gguf_header import read_header, shards_of
from components.models.hashes import (
    end_ids,
    file_hash,
    files_hash,
    tokenizer_folder,
    tokenizer_hash,
    weights_hash,
)
from components.models.source import Source, local_folder
from components.models.weight_files import chat_template_of, stored_dtype
from components.models.zero_folder import state_files, zero_tag
from pipeline.spec import digest, require


def identity_of(source: Source, folder_hash: Callable[[Path, Path], str], cache: Path) -> str:
    """What files are, never where they lie: a hub commit, or a SHA-256.

    `folder_hash` hashes the files of a folder that are meant.
    """
    if source.kind == "hub":
        return f"commit:{source.revision}"
    if source.kind == "architecture":
        return f"architecture:{source.location.rpartition('.')[2]}"
    if source.kind == "foreign":
        return f"sha256:{foreign_hash(source, cache)}"
    content = gguf_hash if source.kind == "gguf" else folder_hash
    return f"sha256:{content(Path(source.location), cache)}"


def foreign_hash(source: Source, cache: Path) -> str:
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


def gguf_hash(gguf: Path, cache: Path) -> str:
    """The SHA-256 of a GGUF file, or one hash over all shards."""
    shards = shards_of(gguf)
    return file_hash(gguf, cache) if len(shards) == 1 else files_hash(gguf.parent, shards, cache)


def template_identity(template: str | None, tokenizer: Source, cache: Path) -> str | None:
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


def dtype_of(weights: Source) -> str | None:
    """The type that weights are stored in, or None if their files do not say."""
    if weights.kind == "gguf" or is_zero(weights):
        return "float32"  # of the folder that it is converted into
    folder = local_folder(weights)
    return stored_dtype(folder) if folder else None


def is_zero(source: Source) -> bool:
    """Whether a source is a training checkpoint of DeepSpeed's ZeRO."""
    return source.kind == "foreign" and zero_tag(Path(source.location)) is not None
