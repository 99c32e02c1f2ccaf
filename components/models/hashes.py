"""Hashes of files: the part of a model's identity that does not say where the files lie."""

import hashlib
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from components.models.weight_files import read_json
from pipeline.spec import SpecError, digest
from pipeline.store.files import StoreError, write_atomically

_SMALL = 1 << 20  # bytes; below this, reading is as fast as looking a hash up
_SETTLED = 2.0  # seconds; a younger file may change again within one tick of its clock
_TRAINING_STATE = ("optimizer", "scheduler", "rng_state", "training_args", "scaler")
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth")
_CONFIGS = ("config.json", "config.yaml")
_GENERATION = "generation_config.json"
_ADAPTER = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)
_VOCABULARIES = TOKENIZER_FILES[:5]


def file_hash(path: Path, cache: Path) -> str:
    """SHA-256 of a file, as hex.

    The hash of a large file is kept in `cache`, under the file's real path, size and time of
    change, so that a checkpoint of many gigabytes is read once.

    Raises:
        SpecError: `cache` cannot be written.
    """
    path = path.resolve()
    stat = path.stat()
    if stat.st_size < _SMALL:
        return _read_hash(path)
    stamp = [str(path), stat.st_size, stat.st_mtime_ns, stat.st_ino]
    note = cache / "hashes" / f"{digest(stamp)}.json"
    if note.is_file():
        return str(json.loads(note.read_text())["sha256"])
    content = _read_hash(path)
    if time.time() - stat.st_mtime > _SETTLED:
        _write_note(note, {"file": str(path), "sha256": content})
    return content


def weights_hash(folder: Path, cache: Path) -> str:
    """One hash over the weight and config files of a model folder, without training state.

    Of its generation config only the end-of-sequence ids count, since nothing else is used.

    Raises:
        SpecError: the folder holds no weights, or `cache` cannot be written.
    """
    weights = weight_files(folder, (*_WEIGHTS, "**/*.pt"))
    if not weights:
        rule = "name a folder that holds weights (*.safetensors, *.bin or *.pt)"
        raise SpecError(f"model.path must {rule}, got {str(folder)!r}")
    configs = _existing(folder, _CONFIGS)
    content = files_hash(folder, [*weights, *configs, *folder.glob("*.py")], cache)
    return digest([content, end_ids(folder)])


def end_ids(folder: Path) -> object:
    """The end-of-sequence ids in a folder's generation config, or None."""
    path = folder / _GENERATION
    return read_json(path).get("eos_token_id") if path.is_file() else None


def adapter_hash(folder: Path, cache: Path) -> str:
    """One hash over the files of a LoRA adapter."""
    return files_hash(folder, _existing(folder, _ADAPTER), cache)


def tokenizer_hash(folder: Path, cache: Path) -> str:
    """One hash over a folder's tokenizer files."""
    return files_hash(folder, _existing(folder, TOKENIZER_FILES), cache)


def tokenizer_folder(folder: Path) -> Path | None:
    """Where a model folder keeps its tokenizer: itself, its subfolder `tokenizer`, or nowhere."""
    for place in (folder, folder / "tokenizer"):
        if any((place / name).is_file() for name in _VOCABULARIES):
            return place
    return None


def weight_files(folder: Path, patterns: Sequence[str] = _WEIGHTS) -> list[Path]:
    """The files in a folder that a loader would read: safetensors, else pickles."""
    for pattern in patterns:
        files = [path for path in folder.glob(pattern) if not path.name.startswith(_TRAINING_STATE)]
        if files:
            return files
    return []


def files_hash(folder: Path, files: Iterable[Path], cache: Path) -> str:
    """One hash over the contents of files and their places within `folder`."""
    return digest({path.relative_to(folder).as_posix(): file_hash(path, cache) for path in files})


def _existing(folder: Path, names: Iterable[str]) -> list[Path]:
    return [folder / name for name in names if (folder / name).is_file()]


def _read_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_note(note: Path, record: dict[str, str]) -> None:
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(note, [json.dumps(record).encode()])
    except (OSError, StoreError) as error:
        raise SpecError(
            f"run.cache_dir must be a writable folder, got {str(note.parent)!r}: {error}"
        ) from error
