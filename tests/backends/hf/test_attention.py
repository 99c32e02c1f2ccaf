"""Attention over cached rows of unequal length against each row by itself."""

import torch

from components.backends.hf.slots.attention import DecodeFrame
from components.backends.hf.slots.kv_cache import KVCache, LayerShape

CPU = torch.device("cpu")
HEADS, GROUP, SIZE, PAGE = 2, 3, 16, 512


def test_rows_of_any_length_and_place_attend_to_their_own_tokens_only() -> None:
    generator = torch.Generator().manual_seed(3)
    cache = KVCache([LayerShape(HEADS, SIZE, SIZE, torch.float32)], 12, PAGE, CPU)
    for tensor in (*cache.keys, *cache.values):
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    # Neighbours, a gap, long beside short ones, a full page, and at the end rows of more pages.
    tables = [[0], [1], [2], [3], [5], [6], [7, 10], [9, 4, 8]]
    lengths = [5, 300, 7, 290, 33, PAGE, PAGE + 1, 2 * PAGE + 40]
    rows = len(tables)
    query = torch.randn(1, HEADS * GROUP, rows, SIZE, generator=generator)
    key, value = (torch.randn(1, HEADS, rows, SIZE, generator=generator) for _ in range(2))
    frame = DecodeFrame(cache, tables, lengths, CPU, torch.float32)
    out = frame.attend(0, query, key, value, 0.25)[0]
    for row, (table, length) in enumerate(zip(tables, lengths, strict=True)):
        keys, values = (
            torch.cat([tensor[page] for page in table], dim=1)[:, :length].repeat_interleave(
                GROUP, dim=0
            )
            for tensor in (cache.keys[0], cache.values[0])
        )
        assert torch.equal(keys[::GROUP, -1], key[0, :, row])  # the new token is cached
        weights = (torch.einsum("hd,htd->ht", query[0, :, row], keys) * 0.25).softmax(-1)
        assert torch.allclose(out[row], torch.einsum("ht,htd->hd", weights, values), atol=1e-5)
