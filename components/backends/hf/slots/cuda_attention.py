"""Attention on CUDA in half precision: flash attention for prompts, our kernel for decoding."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
from torch import Tensor

from components.backends.hf.slots.kernels import float8_attention, step
from components.backends.hf.slots.kv_cache import FP8, KVCache, LayerShape
from components.backends.hf.slots.sequences import ActiveSequence
from components.backends.hf.slots.upload import upload

_LOG2E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class _Programs:
    """How the kernel's work is cut, as it was fastest on an H200."""

    block: int  # tokens that a program reads at a time; pages are multiples of it
    warps: int
    stages: int  # blocks on their way while one is computed
    enough: int  # programs that fill a GPU of some 130 multiprocessors
    most_splits: int

    def splits(self, programs: int) -> int:
        """Splits of a sequence, so that few sequences fill the GPU too; a power of 2."""
        splits = 1
        while splits < self.most_splits and programs * splits < self.enough:
            splits *= 2
        return splits


# Reading 16 bits waits for memory. Reading 8, what is done with them takes as long: small programs
# do it in each other's waiting.
_OF_16_BITS = _Programs(block=64, warps=4, stages=2, enough=512, most_splits=16)
_OF_8_BITS = _Programs(block=32, warps=1, stages=6, enough=512, most_splits=32)


class PagedDecode:
    """One token per slot; pages and positions are tensors, so a CUDA graph can replay it."""

    def __init__(self, cache: KVCache, table: Tensor, positions: Tensor, order: Tensor) -> None:
        """The rows of `table` are slots.

        Args:
            cache: keys and values.
            table: pages of every slot's sequence, int32 [slots, pages].
            positions: tokens that every slot has cached, int64 [slots].
            order: in which slots are started, int32 [slots]; the longest first fill the GPU best.
        """
        self._cache = cache
        self._where = (table, positions, order)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """As `attention.Frame.attend`."""
        shape = self._cache.layers[layer]
        given = (query[0], key[0], value[0])  # [heads, rows, size]
        query_heads, rows, _ = given[0].shape
        programs = _OF_8_BITS if shape.dtype == FP8 else _OF_16_BITS
        splits = programs.splits(rows * shape.heads)
        out = query.new_empty(rows, query_heads, shape.value_size)
        split_sums = split_stats = out
        if splits > 1:
            split_sums = torch.empty(out.numel() * splits, dtype=torch.float32, device=out.device)
            split_stats = torch.empty(2 * rows * query_heads * splits, device=out.device)
        results = (out, split_sums, split_stats)
        sizes = _sizes(shape, query_heads) | {"SPLITS": splits}
        self._start(layer, given, results, scale * _LOG2E, sizes, programs)
        if splits > 1:
            merged = {name: sizes[name] for name in ("VALUE", "VALUES", "SPLITS")}
            step.merge[rows * query_heads,](split_sums, split_stats, out, **merged, num_warps=2)
        return out[None]

    def _start(
        self,
        layer: int,
        given: Sequence[Tensor],
        results: Sequence[Tensor],
        scale: float,
        sizes: dict[str, int],
        programs: _Programs,
    ) -> None:
        """Start the kernel for the type that keys and values are cached in."""
        cache, shape = self._cache, self._cache.layers[layer]
        both = (cache.keys[layer], cache.values[layer])
        strides = [stride for of in given for stride in (of.stride(1), of.stride(0))]
        grid, width = (shape.heads, given[0].shape[1], sizes["SPLITS"]), self._where[0].shape[1]
        launch = {"num_warps": programs.warps, "num_stages": programs.stages}
        if shape.dtype == FP8:
            words = (part.view(torch.int32) for part in both)
            float8_attention.attend[grid](
                *given, *words, *self._where, *results, *strides, width, shape.heads, scale,
                PAGE=cache.size, LARGEST=torch.finfo(FP8).max, BLOCK=programs.block,
                **sizes, **launch,
            )  # fmt: skip
        else:
            step.attend[grid](
                *given, *both, *self._where, *results, *strides, width, cache.size, shape.heads,
                scale, BLOCK=programs.block, **sizes, **launch,
            )  # fmt: skip


def _sizes(shape: LayerShape, query_heads: int) -> dict[str, int]:
    """Sizes that the kernels are compiled for. A program holds powers of 2 of them.

    The matrix instructions take no fewer than 16: numbers, or words of four.
    """
    group, least = query_heads // shape.heads, 64 if shape.dtype == FP8 else 16

    def lanes(size: int, least: int) -> int:
        return max(least, int(triton.next_power_of_2(size)))

    return {
        "GROUP": group,
        "ROWS": lanes(group, 16),
        "KEY": shape.key_size,
        "KEYS": lanes(shape.key_size, least),
        "VALUE": shape.value_size,
        "VALUES": lanes(shape.value_size, least),
    }


class PagedPrefill:
    """Several tokens per sequence, concatenated."""

    def __init__(self, cache: KVCache, split_sums: Sequence[tuple[ActiveSequence, int]]) -> None:
        """For the next `count` ids of every (sequence, count), which have their pages."""
        device = cache.keys[0].device
        starts = [active.cached.computed for active, _ in split_sums]
        counts = [count for _, count in split_sums]
        ends = [start + count for start, count in zip(starts, counts, strict=True)]
        tables = [np.array(active.cached.pages) for active, _ in split_sums]
        new = [np.arange(start, end) for start, end in zip(starts, ends, strict=True)]
        self._cache = cache
        self.positions = upload(np.concatenate(new), device)
        self._places = _places(tables, new, cache.size, device)
        self._all: tuple[Tensor, Tensor] | None = None
        if any(starts) or cache.layers[0].dtype == FP8:  # the same for all rows, cached or new
            whole = [np.arange(end) for end in ends]
            self._all = _places(tables, whole, cache.size, device)
        self._queries = upload(np.cumsum([0, *counts], dtype=np.int32), device)
        self._keys = upload(np.cumsum([0, *ends], dtype=np.int32), device)
        self._longest = (max(counts), max(ends))
        self.last = upload(np.cumsum(counts) - 1, device)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """As `attention.Frame.attend`."""
        cache = self._cache
        cache.write(layer, *self._places, key, value)
        keys, values = key[0].transpose(0, 1), value[0].transpose(0, 1)
        if self._all is not None:
            pages, offsets = self._all
            keys = cache.keys[layer][pages, :, offsets].to(query.dtype)
            values = cache.values[layer][pages, :, offsets].to(query.dtype)
        results = torch.ops.aten._flash_attention_forward(
            query[0].transpose(0, 1).contiguous(),
            keys.contiguous(),
            values.contiguous(),
            self._queries,
            self._keys,
            *self._longest,
            0.0,
            True,
            False,
            scale=scale,
        )
        out: Tensor = results[0]
        return out[None]


def _places(
    tables: Sequence[np.ndarray], tokens: Sequence[np.ndarray], size: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Pages, and offsets in them, of tokens of several sequences."""
    pages = [table[places // size] for table, places in zip(tables, tokens, strict=True)]
    offsets = [places % size for places in tokens]
    both = upload(np.stack((np.concatenate(pages), np.concatenate(offsets))), device)
    return both[0], both[1]
