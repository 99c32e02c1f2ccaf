"""Checks the files of a model folder before they are loaded, so that a broken file is named."""

import json
import os
import pickle
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.spec import SpecError

_LFS = b"version https://git-lfs.github.com/spec/"
_MAX_JSON = 1 << 20  # bytes; larger ones (vocabularies) are parsed by their loader alone
_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_SINGLES = ("model.safetensors", "pytorch_model.bin")


def tensor_names(folder: Path) -> frozenset[str]:
    """The names of all tensors that Transformers would read from a folder, which are checked.

    Raises:
        SpecError: a file is a Git LFS pointer, cut off, missing or holds more than tensors.
    """
    check_texts(folder)
    names: set[str] = set()
    for path in _files(folder):
        refuse_pointer(path)
        names |= _safetensors(path) if path.suffix == ".safetensors" else _pickle(path)
    return frozenset(names)


def stored_dtype(folder: Path) -> str | None:
    """The torch name of the type that a model folder says its weights are in, or None.

    It is `dtype` in config.json (`torch_dtype` before Transformers 5), which is what Transformers
    loads the weights in unless it is told another type.
    """
    path = folder / "config.json"
    config = read_json(path) if path.is_file() else {}
    dtype = config.get("dtype") or config.get("torch_dtype")
    return dtype.removeprefix("torch.") if isinstance(dtype, str) else None


def chat_template_of(folder: Path) -> str | None:
    """The chat template among a folder's tokenizer files, or None."""
    own = folder / "chat_template.jinja"
    if own.is_file():
        return own.read_text(encoding="utf-8", errors="replace")
    path = folder / "tokenizer_config.json"
    template = read_json(path).get("chat_template") if path.is_file() else None
    return template if isinstance(template, str) else None


def check_texts(folder: Path) -> None:
    """Refuse a folder with a file that is a Git LFS pointer, or a small JSON file that is broken.

    Raises:
        SpecError: the message names the file, and the line of an error in JSON.
    """
    for path in sorted(folder.iterdir()):
        if path.suffix in (".json", ".jinja", ".txt", ".model") and path.is_file():
            refuse_pointer(path)
            if path.suffix == ".json" and path.stat().st_size < _MAX_JSON:
                read_json(path)


def quantization_method(folder: Path) -> str | None:
    """How the weights of a checkpoint are stored quantized (`gptq`, `awq`, ...), or None.

    Raises:
        SpecError: its config.json cannot be read.
    """
    config = folder / "config.json"
    stored = read_json(config).get("quantization_config") if config.is_file() else None
    return method_in(stored) if isinstance(stored, dict) else None


def method_in(stored: Mapping[str, Any]) -> str:
    """The method that a `quantization_config` names; old ones of bitsandbytes do not name it."""
    if stored.get("load_in_8bit") or stored.get("load_in_4bit"):
        return "bitsandbytes"
    method = stored.get("quant_method")
    return str(getattr(method, "value", method))


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a checkpoint.

    Raises:
        SpecError: the file cannot be read or holds no JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise SpecError(
            f"{path}:{error.lineno} is not JSON ({error.msg}): the file is cut off or damaged"
        ) from error
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        raise SpecError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise SpecError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content


def refuse_pointer(path: Path) -> None:
    """Refuse a Git LFS pointer: the text that stands for a large file in a clone without LFS.

    Raises:
        SpecError: the file is one.
    """
    with path.open("rb") as file:
        if file.read(len(_LFS)) == _LFS:
            raise SpecError(
                f"{path} is a Git LFS pointer, not the file itself: run `git lfs pull` there"
            )


def _files(folder: Path) -> Iterator[Path]:
    """The weight files that Transformers would read, in the order in which it looks for them."""
    for single, index in zip(_SINGLES, _INDEXES, strict=True):
        if (folder / single).is_file():
            yield folder / single
            return
        if (folder / index).is_file():
            yield from _shards(folder / index)
            return


def _shards(index: Path) -> list[Path]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise SpecError(f"{index} must have a mapping weight_map from tensors to files")
    names = sorted({os.path.basename(str(name)) for name in weight_map.values()})
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        raise SpecError(f"{index} names {', '.join(missing)}, not in its folder: get all shards")
    return [index.parent / name for name in names]


def _safetensors(path: Path) -> set[str]:
    """Names in a safetensors file: 8 bytes of header size, a JSON header, the tensors' bytes."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if 8 + length > size:
            raise SpecError(f"{path} is cut off, or no safetensors file: its header is not whole")
        try:
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            end = max((int(entry["data_offsets"][1]) for entry in header.values()), default=0)
        except (ValueError, AttributeError, KeyError, TypeError, IndexError) as error:
            raise SpecError(f"{path} is no safetensors file: its header makes no sense") from error
    if 8 + length + end != size:
        raise SpecError(f"{path} is cut off: it has {size:,} of {8 + length + end:,} bytes")
    return set(header)


def _pickle(path: Path) -> set[str]:
    """Names in a file of `torch.save`, whose tensors are not read."""
    import torch

    try:
        content = torch.load(path, map_location="meta", weights_only=True)
    except pickle.UnpicklingError as error:
        called = _GLOBAL.search(str(error))
        what = f"it calls {called[1]}" if called else "it holds more than tensors"
        raise SpecError(
            f"{path} is a pickle that is not loaded, since {what}: a pickle can run any program. "
            "Ask its maker for safetensors"
        ) from error
    except (OSError, RuntimeError, EOFError, ValueError, KeyError) as error:
        first = str(error).partition("\n")[0]
        raise SpecError(f"{path} is cut off, or no file of torch.save: {first}") from error
    if not isinstance(content, dict):
        raise SpecError(f"{path} must hold a dictionary of tensors, got {type(content).__name__}")
    return set(map(str, content))
