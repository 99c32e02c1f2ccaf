"""The tensors of the key/value cache: for every layer, pages of equal size."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

import torch
from torch import Tensor

from components.backends.hf.slots.pages import Copy
from components.models.main_memory import free_main_memory

FP8 = torch.float8_e4m3fn  # keys and values are cached in it without scales, as in vLLM
_GPU_SHARE = 0.88  # of free memory; the rest is for activations
_CPU_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Shape and type of what one layer caches per token."""

    heads: int
    key_size: int
    value_size: int
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """Bytes of one token's keys and values."""
        return self.heads * (self.key_size + self.value_size) * self.dtype.itemsize


class KVCache:
    """Per layer one tensor [pages, heads, page_size, size] for keys, and one for values."""

    def __init__(
        self, layers: Iterable[LayerShape], pages: int, size: int, device: torch.device
    ) -> None:
        self.layers = tuple(layers)
        self.pages = pages
        self.size = size

        def memory(layer: LayerShape, width: int) -> Tensor:
            return _zeros((pages, layer.heads, size, width), layer.dtype, device)

        self.keys = [memory(layer, layer.key_size) for layer in self.layers]
        self.values = [memory(layer, layer.value_size) for layer in self.layers]

    @property
    def bytes(self) -> int:
        """Bytes of all pages."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))

    def write(self, layer: int, pages: Tensor, offsets: Tensor, key: Tensor, value: Tensor) -> None:
        """Write keys and values [1, heads, tokens, size] to offsets within pages."""
        dtype = self.layers[layer].dtype
        self.keys[layer][pages, :, offsets] = as_cached(key[0].transpose(0, 1), dtype)
        self.values[layer][pages, :, offsets] = as_cached(value[0].transpose(0, 1), dtype)

    def gather(self, layer: int, table: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [sequences, heads, tokens, size] in pages [sequences, n]."""
        both = (self.keys[layer], self.values[layer])
        keys, values = (t[table].transpose(1, 2).flatten(2, 3) for t in both)
        return keys, values

    def copy(self, copies: Iterable[Copy]) -> None:
        """Copy the starts of pages, with the result of copying one after another."""
        for batch in independent(copies):
            count = max(copy.count for copy in batch)
            pages = torch.tensor([(copy.source, copy.target) for copy in batch])
            sources, targets = pages.T.to(self.keys[0].device)
            for tensor in (*self.keys, *self.values):
                tensor[targets, :, :count] = tensor[sources, :, :count]

    def wipe(self, pages: Sequence[int], count: int) -> None:
        """Write zeros to the first `count` tokens of pages."""
        places = torch.tensor(pages, dtype=torch.int64, device=self.keys[0].device)
        for tensor in (*self.keys, *self.values):
            tensor[places, :, :count] = 0

    def clear(self) -> None:
        """Free all memory."""
        self.keys, self.values = [], []


def as_cached(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Values in the cache's type; those beyond an 8-bit type become its largest, not NaN."""
    if dtype == FP8:
        largest = torch.finfo(FP8).max
        values = values.clamp(-largest, largest)
    return values.to(dtype)


def independent(copies: Iterable[Copy]) -> list[list[Copy]]:
    """Split copies into lists within which their order does not matter.

    Samples of one prompt copy from each other in a chain; here all of them copy from the first.
    """
    batches: list[list[Copy]] = []
    read: set[int] = set()
    copy_to: dict[int, Copy] = {}
    for copy in copies:
        before = copy_to.get(copy.source)
        if before is not None and before.count >= copy.count:
            copy = Copy(before.source, copy.target, copy.count)
        if not batches or copy.target in read or copy.target in copy_to or copy.source in copy_to:
            batches.append([])
            read, copy_to = set(), {}
        batches[-1].append(copy)
        read.add(copy.source)
        copy_to[copy.target] = copy
    return batches


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros: masked attention multiplies what was never written by 0, so it must be finite.

    Main memory is only taken once it is written to, so a large cache costs what is used of it.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    count = math.prod(shape) * dtype.itemsize
    # NumPy's zeros ask for huge pages, so a sequence's first token would take 2 MB per layer.
    memory = mmap(-1, count, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def free_memory(device: torch.device) -> int:
    """Bytes that a cache may take on `device` now."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(device)[0] * _GPU_SHARE)
    return int(free_main_memory() * _CPU_SHARE)
