"""Turns a GGUF file, once, into the safetensors folder that Transformers loads in a second."""

import json
import logging
import os
import shutil
import tempfile
import time
from pathlib import Path

from filelock import FileLock
from safetensors import SafetensorError

from pipeline.spec import SpecError

_LOG = logging.getLogger(__name__)
_VERSION = 1  # of the conversion; a higher number converts again
_SEAL = "rethink.json"  # written last: names every file of the folder with its size


def folder_for(gguf: Path, content: str, cache: Path) -> Path:
    """The float32 safetensors folder of a GGUF file, made if it is not in `cache` yet.

    Several processes may ask at once: one converts, the others wait and use its folder. A folder
    appears under its name only when whole, so a conversion that was cut off is never loaded.

    Args:
        gguf: the file.
        content: SHA-256 of the file, which names the folder.
        cache: the cache folder.

    Raises:
        SpecError: `cache` cannot be written, or the file cannot be read as GGUF.
    """
    target = cache / "models" / f"{gguf.stem}-{content[:16]}-v{_VERSION}"
    if _is_whole(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(f"{target.name}.lock")):
            if not _is_whole(target):
                _replace(target, gguf)
    except (OSError, ValueError, SafetensorError) as error:
        raise SpecError(
            f"{gguf} could not be converted into run.cache_dir={str(cache)!r}: {error}"
        ) from error
    return target


def _replace(target: Path, gguf: Path) -> None:
    """Make `target`. The caller holds its lock, so whatever lies about under its name is dead."""
    for dead in [target, *target.parent.glob(f"{target.name}.part-*")]:
        shutil.rmtree(dead, ignore_errors=True)
    _LOG.info("converting %s to safetensors, once: about a minute", gguf.name)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"{target.name}.part-", dir=target.parent) as part:
        made = Path(part) / "model"
        _convert(gguf, made)
        _seal(made)
        made.rename(target)
    _LOG.info("converted %s in %.0f s: %s", gguf.name, time.monotonic() - start, target)


def _convert(gguf: Path, out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    place, name = str(gguf.parent), gguf.name
    # Without `dequantize` the model is marked as quantized and refuses to be saved.
    as_floats = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        place, gguf_file=name, quantization_config=as_floats, dtype=torch.float32
    )
    model.config._name_or_path = gguf.stem  # the GGUF's own title has spaces
    tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=name, padding_side="left")
    tokenizer.model_max_length = model.config.max_position_embeddings  # GGUF leaves it unset
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def _seal(folder: Path) -> None:
    """Flush every file to disk and write down what a whole folder holds."""
    sizes = {}
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        sizes[path.name] = path.stat().st_size
    (folder / _SEAL).write_text(json.dumps(sizes, indent=1))


def _is_whole(folder: Path) -> bool:
    seal = folder / _SEAL
    if not seal.is_file():
        return False
    sizes: dict[str, int] = json.loads(seal.read_text())
    files = {name: folder / name for name in sizes}
    return all(
        path.is_file() and path.stat().st_size == sizes[name] for name, path in files.items()
    )
