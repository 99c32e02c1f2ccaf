"""Turns a GGUF model, once, into the safetensors folder that Transformers loads in a second."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from components.models.converted_folder import converted_folder
from components.models.gguf_header import read_header, shards_of
from components.models.gguf_rest import refuse_unread, scale_rotation
from components.models.gguf_rewriting import rewritten
from components.models.tensors import refuse_incomplete
from pipeline.spec import SpecError

if TYPE_CHECKING:
    import torch

_VERSION = 3  # of the conversion; a higher number converts again


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
            the model has tensors that the file lacks, or the file has what cannot be read.
    """
    target = cache / "models" / f"{gguf.stem}-{content[:16]}-v{_VERSION}"
    try:
        return converted_folder(target, gguf.name, lambda folder: _make(gguf, folder))
    except SpecError:
        raise
    except (OSError, ValueError, KeyError, NotImplementedError, SafetensorError) as error:
        raise SpecError(
            f"{gguf} could not be converted into run.cache_dir={str(cache)!r}: {error}"
        ) from error


def _make(gguf: Path, folder: Path) -> None:
    shards = shards_of(gguf)
    if len(shards) > 1:
        gguf = join_shards(shards, folder.with_name(f"{gguf.stem}.gguf"))
    _convert(gguf, folder)


def join_shards(shards: Sequence[Path], target: Path) -> Path:
    """Write the tensors of all shards, under the first one's key-value pairs, into one file."""
    import gguf

    readers = [gguf.GGUFReader(shard) for shard in shards]
    tensors = [tensor for reader in readers for tensor in reader.tensors]
    return rewritten(readers[0], tensors, target)


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
    header = read_header(gguf)
    refuse_unread(model, header, gguf)
    scale_rotation(model, header, _rope_factors(gguf), gguf)
    model.config._name_or_path = gguf.stem  # the GGUF's own title has spaces
    tokenizer = AutoTokenizer.from_pretrained(location, gguf_file=name, padding_side="left")
    tokenizer.model_max_length = model.config.max_position_embeddings  # GGUF leaves it unset
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _rope_factors(gguf: Path) -> "torch.Tensor | None":
    """The factors by which Llama 3 slows its rotary frequencies; None where a file has none."""
    import torch
    from gguf import GGUFReader

    reader: Any = GGUFReader(gguf)
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    factors = tensors.get("rope_freqs.weight")
    return None if factors is None else torch.from_numpy(factors.copy())
