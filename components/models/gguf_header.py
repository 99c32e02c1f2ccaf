"""Reads the header of a GGUF file and checks that the file holds what its header announces.

The layout (docs/gguf.md of github.com/ggml-org/ggml) is: magic, version, counts, key-value pairs,
descriptions of the tensors, then the aligned data of the tensors.
"""

import mmap
import re
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.spec import SpecError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_ENTRIES = 1 << 24  # of tensors, key-value pairs or array elements; no real file comes near
_SCALARS = dict(zip(range(8), "BbHhIif?", strict=True)) | {10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_SHARD_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a GGUF file says of itself.

    Attributes:
        fields: the key-value pairs that are numbers, booleans or short text; arrays are left out.
        tensors: the names of the tensors in this file, in its order.
        num_shards: the number of files that the model is split into.
        bytes_by_type: the bytes of the tensors of each type, such as Q8_0.
    """

    fields: dict[str, Any]
    tensors: tuple[str, ...]
    num_shards: int
    bytes_by_type: dict[str, int]


def shards_of(gguf: Path) -> list[Path]:
    """All files of the model of which `gguf` is one, in order: itself alone, or every shard.

    Raises:
        SpecError: a shard is missing, or a file is not a whole GGUF file.
    """
    count = read_header(gguf).num_shards
    if count == 1:
        return [gguf]
    name = _SHARD_NAME.fullmatch(gguf.name)
    if name is None or int(name[3]) != count:
        rule = f"be called <name>-00001-of-{count:05d}.gguf, since it is one of {count} shards"
        raise SpecError(f"model.path must {rule}, got {str(gguf)!r}")
    shards = [gguf.with_name(f"{name[1]}-{n:05d}-of-{name[3]}.gguf") for n in range(1, count + 1)]
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise SpecError(
            f"model.path={gguf} is one of {count} shards, and {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not beside it: get all of them"
        )
    for shard in shards:
        read_header(shard)
    return shards


def read_header(gguf: Path) -> GgufHeader:
    """The header of one file, which is read without its tensors.

    Raises:
        SpecError: the file is no GGUF file, its header makes no sense, or its end is missing.
    """
    try:
        with gguf.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data).header()
    except (OSError, ValueError, struct.error) as error:
        reason = "its header ends too early" if isinstance(error, struct.error) else error
        raise SpecError(
            f"{gguf} is not a whole GGUF file: {reason}. Copy or download it again"
        ) from error


class _Tensor(NamedTuple):
    """A tensor's name and type, where its data begins in the tensor data, and its bytes."""

    name: str
    kind: str
    offset: int
    size: int


class _Reader:
    """A position in the bytes of a GGUF file."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def header(self) -> GgufHeader:
        """Read everything up to the tensor data, and compare the file's size with it."""
        if self._data[:4] != _MAGIC:
            start = bytes(self._data[:16])
            raise ValueError(f"it begins with {start!r} instead of GGUF")
        self._at = 4
        version = self._number("I")
        if version not in _VERSIONS:
            raise ValueError(f"its version is {version}; versions {_VERSIONS} can be read")
        num_tensors, num_fields = self._count("tensors"), self._count("key-value pairs")
        fields = {}
        for _ in range(num_fields):
            key = self._text()
            fields[key] = self._value(self._number("I"))
        tensors = [self._tensor() for _ in range(num_tensors)]
        self._check_size(_count_in(fields, "general.alignment", 32), tensors)
        size: Counter[str] = Counter()
        for tensor in tensors:
            size[tensor.kind] += tensor.size
        kept = {key: value for key, value in fields.items() if value is not None}
        num_shards = _count_in(fields, "split.count", 1)
        names = tuple(tensor.name for tensor in tensors)
        return GgufHeader(kept, names, num_shards, dict(size.most_common()))

    def _check_size(self, alignment: int, tensors: "list[_Tensor]") -> None:
        """Refuse a file that ends before the last tensor does."""
        start = -(-self._at // alignment) * alignment
        end = start + max((tensor.offset + tensor.size for tensor in tensors), default=0)
        if end > len(self._data):
            raise ValueError(f"it has {len(self._data):,} of {end:,} bytes")

    def _number(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self._data, self._at)
        self._at += struct.calcsize(code)
        return value

    def _count(self, what: str) -> int:
        count: int = self._number("Q")
        if count > _MAX_ENTRIES:
            raise ValueError(f"its header announces {count:,} {what}")
        return count

    def _text(self) -> str:
        start = self._at + 8
        self._skip(self._number("Q"))
        return self._data[start : self._at].decode("utf-8", "replace")

    def _skip(self, size: int) -> None:
        if size > len(self._data) - self._at:
            raise ValueError(f"its header announces a value of {size:,} bytes")
        self._at += size

    def _value(self, kind: int) -> Any:
        """The next value; None for an array, which is stepped over."""
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY:
            raise ValueError(f"its header holds a value of the unknown type {kind}")
        element = self._number("I")
        count = self._count("array elements")
        if element in _SCALARS:
            self._skip(count * struct.calcsize(_SCALARS[element]))
        elif element == _STRING:
            for _ in range(count):
                self._skip(self._number("Q"))
        else:
            raise ValueError(f"its header holds an array of the unknown type {element}")
        return None

    def _tensor(self) -> "_Tensor":
        """What is said of the next tensor."""
        name = self._text()
        num_dimensions = self._number("I")
        if not 1 <= num_dimensions <= 8:
            raise ValueError(f"its tensor {name!r} has {num_dimensions} dimensions")
        num_values = 1
        for _ in range(num_dimensions):
            num_values *= self._number("Q")
        kind, block, block_bytes = _block(name, self._number("I"))
        return _Tensor(name, kind, self._number("Q"), num_values // block * block_bytes)


def _count_in(fields: dict[str, Any], key: str, default: int) -> int:
    count = fields.get(key) or default
    if not isinstance(count, int) or not 0 < count < _MAX_ENTRIES:
        raise ValueError(f"its {key} is {count!r}")
    return count


def _block(name: str, kind: int) -> tuple[str, int, int]:
    """The name of a tensor type, and values and bytes of one block of it."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        values, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        return GGMLQuantizationType(kind).name, values, size
    except (ValueError, KeyError) as error:
        raise ValueError(f"its tensor {name!r} has the unknown type {kind}") from error
