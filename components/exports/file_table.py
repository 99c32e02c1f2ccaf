"""What an export wrote: every file with its bytes and the types of its tensors."""

import json
import struct
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from components.models.gguf_header import read_header

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


class WrittenFile(NamedTuple):
    """One file: its name, its size, and bytes of tensors by type, as the format calls them."""

    file: str
    bytes: int
    dtypes: dict[str, int]


def written_files(folder: Path) -> list[WrittenFile]:
    """Every file of a folder by name, export.json itself left out, since it holds this list."""
    return [
        WrittenFile(path.name, path.stat().st_size, _dtypes(path))
        for path in sorted(folder.iterdir())
        if path.is_file()
    ]


def as_text(files: Sequence[WrittenFile]) -> str:
    """The table as it is printed."""
    rows = [("file", "bytes", "dtype")]
    for name, size, dtypes in files:
        rows.append((name, f"{size:,}", _shares(dtypes)))
    rows.append(("total", f"{sum(file.bytes for file in files):,}", ""))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [f"{name:<{widths[0]}}  {size:>{widths[1]}}  {kind}" for name, size, kind in rows]
    return "\n".join(line.rstrip() for line in lines)


def _shares(dtypes: dict[str, int]) -> str:
    if len(dtypes) < 2:
        return next(iter(dtypes), "")
    return ", ".join(f"{name} {_readable(size)}" for name, size in dtypes.items())


def _readable(size: int) -> str:
    for unit, name in _UNITS:
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} B"


def _dtypes(path: Path) -> dict[str, int]:
    if path.suffix == ".safetensors":
        return _of_safetensors(path)
    return read_header(path).bytes_by_type if path.suffix == ".gguf" else {}


def _of_safetensors(path: Path) -> dict[str, int]:
    """From the header: its length in 8 bytes, then JSON with types and offsets."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header: dict[str, Any] = json.loads(file.read(length))
    size: Counter[str] = Counter()
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            size[entry["dtype"]] += end - start
    return dict(size.most_common())
