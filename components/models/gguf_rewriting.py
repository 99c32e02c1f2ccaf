"""Writes a GGUF file from others: the same key-value pairs, tensors as they are or in new types."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType, GGUFReader, ReaderTensor

_OF_THE_FILE = ("GGUF.", "split.")  # what says how a file is laid out, and not what it holds


def rewritten(
    first: "GGUFReader",
    tensors: "Sequence[ReaderTensor]",
    target: Path,
    type_of: "Callable[[ReaderTensor], GGMLQuantizationType] | None" = None,
    values: Mapping[str, Any] | None = None,
) -> Path:
    """Write one file, tensor by tensor, so that no two are in memory at once.

    Args:
        first: the file whose key-value pairs are taken.
        tensors: what is written, in this order.
        target: the file to be made.
        type_of: the type that a tensor gets, by llama.cpp's own reference; None: as it is.
        values: replaces values of key-value pairs.

    Returns:
        `target`.
    """
    import gguf

    given = values or {}
    architecture = "general.architecture"
    writer = gguf.GGUFWriter(target, str(first.fields[architecture].contents()))
    for field in first.fields.values():
        if field.name.startswith(_OF_THE_FILE) or field.name == architecture:
            continue
        form = field.types[0]
        element = field.types[-1] if form == gguf.GGUFValueType.ARRAY else None
        value = given.get(field.name, field.contents())
        writer.add_key_value(field.name, value, form, sub_type=element)
    types = [type_of(tensor) if type_of else tensor.tensor_type for tensor in tensors]
    for tensor, kind in zip(tensors, types, strict=True):
        _announce(writer, tensor, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor, kind in zip(tensors, types, strict=True):
        writer.write_tensor_data(_data(tensor, kind))
    writer.close()
    return target


def _announce(writer: Any, tensor: "ReaderTensor", kind: "GGMLQuantizationType") -> None:
    """Describe a tensor in the header, before there is data of it."""
    import numpy as np
    from gguf.quants import quant_shape_to_byte_shape

    data = tensor.data
    shape, dtype, size = data.shape, data.dtype, data.nbytes
    if kind != tensor.tensor_type:
        values = [int(n) for n in reversed(tensor.shape)]
        shape, dtype = quant_shape_to_byte_shape(values, kind), np.dtype(np.uint8)
        size = int(np.prod(shape))
    writer.add_tensor_info(tensor.name, shape, dtype, size, raw_dtype=kind)


def _data(tensor: "ReaderTensor", kind: "GGMLQuantizationType") -> Any:
    from gguf.quants import dequantize, quantize

    if kind == tensor.tensor_type:
        return tensor.data
    return quantize(dequantize(tensor.data, tensor.tensor_type), kind)
