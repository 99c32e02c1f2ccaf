"""Attention on CUDA in half precision: flash attention for prompts, our kernel for decoding."""

from collections.abc import Sequence

import numpy as np
import torch
import triton
from torch import Tensor

from components.backends.hf.slots import kernels as step
from components.backends.hf.slots.kv_cache import KeyValues
from components.backends.hf.slots.rows import Running

_LOG2E = 1.4426950408889634
_BLOCK = 64  # tokens of a page that a program reads at once
_BUSY = 512  # programs that fill a card of some 130 multiprocessors
_MOST_SPLITS = 16


class PagedDecode:
    """One token of every slot, the places told by tensors: fit for a CUDA graph."""

    def __init__(self, cache: KeyValues, table: Tensor, positions: Tensor, order: Tensor) -> None:
        """Rows of `table` stand for slots.

        Args:
            cache: keys and values.
            table: pages of every row, int32 [slots, pages of a row].
            positions: tokens that every row has cached, int64 [slots].
            order: in which rows are begun, int32 [slots]: the longest first fill the card best.
        """
        self._cache = cache
        self._table = table
        self._where = (table, positions, order)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """As `attention.Frame.attend`."""
        cache, shape = self._cache, self._cache.layers[layer]
        keys, values = cache.keys[layer], cache.values[layer]
        query, key, value = query[0], key[0], value[0]  # [heads, rows, size]
        rows, heads = query.shape[1], shape.heads
        group, width = len(query) // heads, self._table.shape[1]
        sizes = {"KEY": shape.key_size, "VALUE": shape.value_size}
        splits = _splits(rows * heads)
        out = query.new_empty(rows, len(query), shape.value_size)
        parts = facts = out
        if splits > 1:
            parts = torch.empty(out.numel() * splits, dtype=torch.float32, device=out.device)
            facts = torch.empty(2 * rows * len(query) * splits, device=out.device)
        lanes = {
            "KEYS": triton.next_power_of_2(shape.key_size),
            "VALUES": triton.next_power_of_2(shape.value_size),
        }
        step.attend[heads, rows, splits](
            query, key, value, keys, values, *self._where, out, parts, facts,
            *(stride for of in (query, key, value) for stride in (of.stride(1), of.stride(0))),
            width, cache.size, heads, scale * _LOG2E, GROUP=group,
            ROWS=max(16, triton.next_power_of_2(group)), BLOCK=_BLOCK, SPLITS=splits,
            **sizes, **lanes, num_warps=4, num_stages=2,
        )  # fmt: skip
        if splits > 1:
            merged = {"VALUE": sizes["VALUE"], "VALUES": lanes["VALUES"], "SPLITS": splits}
            step.merge[rows * len(query),](parts, facts, out, **merged, num_warps=2)
        return out[None]


class PagedPrefill:
    """Several tokens per row, packed behind one another."""

    def __init__(self, cache: KeyValues, parts: Sequence[tuple[Running, int]]) -> None:
        """The next `count` ids of every row; their pages are there."""
        device = cache.keys[0].device
        starts = [running.held.computed for running, _ in parts]
        counts = [count for _, count in parts]
        ends = [start + count for start, count in zip(starts, counts, strict=True)]
        tables = [np.array(running.held.pages) for running, _ in parts]
        new = [np.arange(start, end) for start, end in zip(starts, ends, strict=True)]
        self._cache = cache
        self.positions = upload(np.concatenate(new), device)
        self._places = _places(tables, new, cache.size, device)
        self._all: tuple[Tensor, Tensor] | None = None
        if any(starts):
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
            keys = cache.keys[layer][pages, :, offsets]
            values = cache.values[layer][pages, :, offsets]
        found = torch.ops.aten._flash_attention_forward(
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
        out: Tensor = found[0]
        return out[None]


def _places(
    tables: Sequence[np.ndarray], tokens: Sequence[np.ndarray], size: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Page and place in it of tokens of several rows."""
    pages = [table[some // size] for table, some in zip(tables, tokens, strict=True)]
    offsets = [some % size for some in tokens]
    both = upload(np.stack((np.concatenate(pages), np.concatenate(offsets))), device)
    return both[0], both[1]


def upload(values: np.ndarray, device: torch.device) -> Tensor:
    """A host array on the device, without waiting for what runs there."""
    return torch.from_numpy(values).pin_memory().to(device, non_blocking=True)


def _splits(programs: int) -> int:
    """Parts that a row is read in, so that few rows fill the card too; a power of 2."""
    splits = 1
    while splits < _MOST_SPLITS and programs * splits < _BUSY:
        splits *= 2
    return splits
