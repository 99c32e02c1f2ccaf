"""Attention that reads each row of a padded batch alone, so that numbers do not depend on batches.

Over a padded batch, attention adds a row's terms in an order that depends on the padding, and
matrix products add theirs in an order that depends on the number of rows. With this attention, and
`FIXED_ORDER` on Intel processors, a float32 row on the CPU is the same in any batch, bit for bit.
"""

import logging
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

_LOG = logging.getLogger(__name__)
NAME = "rowwise_sdpa"
FIXED_ORDER = ("MKL_CBWR", "AUTO,STRICT")  # read by Intel's library at its first product
_UNKNOWN = ("softcap", "position_bias", "s_aux")


def make_repeatable(model: PreTrainedModel) -> None:
    """Make a model's rows independent of their batch, where this processor's library can."""
    if model.config._attn_implementation == "sdpa" and not attends_in_chunks(model):
        AttentionInterface.register(NAME, rowwise_attention)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        model.set_attn_implementation(NAME)
    if not order_is_fixed():
        name, value = FIXED_ORDER
        _LOG.warning(
            "matrix products add in an order that depends on the batch, and so may the last digits "
            "of entropies: %s=%s in the environment mends it on Intel processors",
            name,
            value,
        )


def attends_in_chunks(model: PreTrainedModel) -> bool:
    """Whether layers attend within chunks (Llama 4), which only the mask tells."""
    layers = getattr(model.config.get_text_config(), "layer_types", None) or ()
    return "chunked_attention" in layers


def order_is_fixed() -> bool:
    """Whether sums of matrix products ignore the number of rows in this process."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(256, 576, generator=generator)
    rows = torch.randn(16, 576, generator=generator)
    whole = linear(rows, weights)
    return all(torch.equal(linear(rows[:count], weights), whole[:count]) for count in (1, 3, 8))


def rowwise_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """As Transformers' `sdpa`, one row of a left-padded batch at a time.

    Shapes are [rows, heads, queries, size] for `query`, the same with keys for `key` and `value`,
    [rows, 1, queries, keys] for the bool mask, and [rows, queries, heads, size] for the result.
    Padding gets zeros.
    """
    queries, keys = query.shape[2], key.shape[2]
    if queries not in (1, keys) or any(kwargs.get(name) is not None for name in _UNKNOWN):
        attended: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
        return attended
    window = kwargs.get("sliding_window")
    result = query.new_zeros(query.shape[0], queries, query.shape[1], value.shape[-1])
    for row, start in enumerate(_starts(attention_mask, len(query), queries)):
        first = 0 if queries == 1 else start
        windowed = window is not None and 1 < queries and keys - start > window
        mask = None
        if windowed and attention_mask is not None:
            mask = attention_mask[row, 0, start:, start:]
        result[row, first:] = _one_row(
            query[row, :, first:], key[row, :, start:], value[row, :, start:], mask, scaling
        )
    return result, None


def _starts(mask: Tensor | None, rows: int, queries: int) -> list[int]:
    """Where each row's keys begin: what its only query sees, or the first that sees itself."""
    if mask is None:
        return [0] * rows
    seen = mask[:, 0, 0] if queries == 1 else mask[:, 0].diagonal(dim1=-2, dim2=-1)
    starts: list[int] = seen.int().argmax(dim=-1).tolist()
    return starts


def _one_row(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None
) -> Tensor:
    """Attention of [heads, queries, size] over [key heads, keys, size]: [queries, heads, size]."""
    heads, queries, size = query.shape
    if queries == 1:  # heads that share keys become queries of one head
        query = query.reshape(len(key), heads // len(key), size)
    elif heads != len(key):
        key, value = (repeat_kv(each.unsqueeze(0), heads // len(key))[0] for each in (key, value))
    attended = scaled_dot_product_attention(
        query.unsqueeze(0),
        key.unsqueeze(0),
        value.unsqueeze(0),
        attn_mask=mask,
        scale=scaling,
        is_causal=mask is None and queries > 1,
    )
    return attended.reshape(heads, queries, -1).transpose(0, 1)
