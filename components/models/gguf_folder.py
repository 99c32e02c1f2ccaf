"""Turns a GGUF model, once, into the safetensors folder that Transformers loads in a second."""

import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock
from safetensors import SafetensorError

from components.models.gguf_header import shards_of
from components.models.tensors import refuse_incomplete
from pipeline.spec import SpecError

_LOG = logging.getLogger(__name__)
_VERSION = 2  # of the conversion; a higher number converts again
_SEAL = "rethink.json"  # written last: names every file of the folder with its size


def folder_for(gguf: Path, content: str, cache: Path) -> Path:
    """The float32 safetensors folder of a GGUF model, made if it is not in `cache` yet.

    Several processes may ask at once: one converts, the others wait and use its folder. A folder
    appears under its name only when it is complete, so a conversion that was cut off is never
    loaded.

    Args:
        gguf: the file, or any shard of several.
        content: hash of the file or of all shards, which names the folder.
        cache: the cache folder.

    Raises:
        SpecError: `cache` cannot be written, the file cannot be read as GGUF, a shard is missing,
            or the model has tensors that the file lacks.
    """
    target = cache / "models" / f"{gguf.stem}-{content[:16]}-v{_VERSION}"
    if _is_whole(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(f"{target.name}.lock")):
            if not _is_whole(target):
                _replace(target, gguf)
    except SpecError:
        raise
    except (OSError, ValueError, KeyError, NotImplementedError, SafetensorError) as error:
        raise SpecError(
            f"{gguf} could not be converted into run.cache_dir={str(cache)!r}: {error}"
        ) from error
    return target


def _replace(target: Path, gguf: Path) -> None:
    """Make `target`. The caller holds its lock, so any older files of that name are abandoned."""
    for abandoned in [target, *target.parent.glob(f"{target.name}.part-*")]:
        shutil.rmtree(abandoned, ignore_errors=True)
    shards = shards_of(gguf)
    _LOG.info("converting %s to safetensors, once: about a minute", gguf.name)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"{target.name}.part-", dir=target.parent) as part:
        folder = Path(part) / "model"
        if len(shards) == 1:
            _convert(gguf, folder)
        else:
            _convert(join_shards(shards, Path(part) / f"{gguf.stem}.gguf"), folder)
        _seal(folder)
        folder.rename(target)
    _LOG.info("converted %s in %.0f s: %s", gguf.name, time.monotonic() - start, target)


def join_shards(shards: Sequence[Path], target: Path) -> Path:
    """Write the tensors of all shards, under the first one's key-value pairs, into one file."""
    import gguf

    readers = [gguf.GGUFReader(shard) for shard in shards]
    fields = readers[0].fields
    writer = gguf.GGUFWriter(target, str(fields["general.architecture"].contents()))
    for field in fields.values():
        if field.name.startswith(("GGUF.", "split.")) or field.name == "general.architecture":
            continue
        kind = field.types[0]
        element = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=element)
    tensors = [tensor for reader in readers for tensor in reader.tensors]
    for tensor in tensors:
        data = tensor.data
        writer.add_tensor_info(
            tensor.name, data.shape, data.dtype, data.nbytes, raw_dtype=tensor.tensor_type
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in tensors:
        writer.write_tensor_data(tensor.data)
    writer.close()
    return target


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    location, name = str(gguf.parent), gguf.name
    # Without `dequantize` the model is marked as quantized and refuses to be saved.
    as_floats = GgufConfig(dequantize=True)
    auto: Any = AutoModelForCausalLM
    model, loading = auto.from_pretrained(
        location,
        gguf_file=name,
        quantization_config=as_floats,
        dtype=torch.float32,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    refuse_incomplete(loading, str(gguf))
    model.config._name_or_path = gguf.stem  # the GGUF's own title has spaces
    tokenizer = AutoTokenizer.from_pretrained(location, gguf_file=name, padding_side="left")
    tokenizer.model_max_length = model.config.max_position_embeddings  # GGUF leaves it unset
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _seal(folder: Path) -> None:
    """Flush every file to disk and write down the size of each."""
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
