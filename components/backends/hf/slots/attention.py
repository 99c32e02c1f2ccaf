"""The attention function that the decoder puts in place of a model's own.

The model sees all sequences' tokens concatenated. The current `Frame`, which is thread-local, says
which tokens belong to which sequence, and where their keys and values are cached.
"""

import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from components.backends.hf.slots.kv_cache import KVCache, LayerShape

NAME = "rethink_pages"
_MOST_PROGRAMS = 1024  # that the compiler makes of one function, for whatever models there are
_PADDING = 128  # tokens past ends that a call may read rather than be split in two
# Arguments that models pass to attention and that do not change its result here.
_IGNORED = {
    "position_ids",
    "use_cache",
    "cache_position",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "return_dict",
    "position_embeddings",
    "is_causal",
    "cache",
    "past_key_values",
    "sliding_window",
}


class UnfitAttentionError(ValueError):
    """The model's attention needs something that this function does not do."""


class Frame(Protocol):
    """Which token attends to what in one call of the model."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Cache key and value [1, heads, tokens, size]; return [1, tokens, heads, size]."""


_current = threading.local()


@contextmanager
def using_frame(frame: Frame) -> Iterator[None]:
    """Let attention in this thread go through `frame`."""
    _current.frame = frame
    try:
        yield
    finally:
        del _current.frame


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention over the cached tokens of every sequence, with Transformers' signature.

    Raises:
        UnfitAttentionError: the model passes an argument that would change the result.
    """
    unknown = {name for name, given in others.items() if given is not None} - _IGNORED
    if unknown:
        raise UnfitAttentionError(f"its attention is given {', '.join(sorted(unknown))}")
    if attention_mask is not None:
        raise UnfitAttentionError("its attention is given a mask of its own")
    window, longest = others.get("sliding_window"), _longest(module)
    if window is not None and window < longest:
        raise UnfitAttentionError(f"its attention slides over {window} of {longest} positions")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if torch.compiler.is_compiling():
        return torch.ops.rethink.attend(query, key, value, scale, module.layer_number), None
    frame: Frame = _current.frame
    layer: Any = module.layer_idx
    return frame.attend(layer, query, key, value, scale), None


# The compiler sees one opaque call, so it need not know about caches. The layer's number is a
# tensor: with a plain number, every layer would be compiled anew.
@torch.library.custom_op("rethink::attend", mutates_args=())
def _operator(query: Tensor, key: Tensor, value: Tensor, scale: float, layer: Tensor) -> Tensor:
    frame: Frame = _current.frame
    return frame.attend(int(layer), query, key, value, scale)


@_operator.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, scale: float, layer: Tensor) -> Tensor:
    return query.new_empty(1, query.shape[2], query.shape[1], value.shape[-1])


def _longest(module: nn.Module) -> float:
    """Positions that the model has, if its config says so."""
    return getattr(module.config, "max_position_embeddings", None) or math.inf


AttentionInterface.register(NAME, attend)


def compile_layers(model: PreTrainedModel) -> None:
    """Compile the model's layers on first use, as one program that they share."""
    # All models of an architecture share its limit, and one process may load many.
    config: Any = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, _MOST_PROGRAMS)
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, _MOST_PROGRAMS)
    for module in model.modules():
        number = getattr(module, "layer_idx", None)
        if number is not None:
            module.layer_number = torch.tensor(number)
    for layer in _layers(model):
        layer.compile(dynamic=True, fullgraph=True)


def leave_uncompiled(model: PreTrainedModel) -> None:
    """Undo `compile_layers`."""
    for layer in _layers(model):
        layer._compiled_call_impl = None


def _layers(model: PreTrainedModel) -> Iterable[Any]:
    decoder: Any = model.get_decoder()  # type: ignore[no-untyped-call]
    return decoder.layers  # type: ignore[no-any-return]


class ProbeFrame:
    """A single sequence from its start, without a cache; records what every layer would cache."""

    def __init__(self) -> None:
        self.shapes: dict[int, LayerShape] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Causal attention within the call."""
        if layer in self.shapes:
            raise UnfitAttentionError("a layer attends more than once in a step")
        heads, key_size, value_size = key.shape[1], key.shape[-1], value.shape[-1]
        self.shapes[layer] = LayerShape(heads, key_size, value_size, key.dtype)
        out = scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scale, enable_gqa=True
        )
        return out.transpose(1, 2)


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Consecutive tokens of one sequence within a packed call."""

    start: int  # index in the call
    count: int
    length: int  # tokens of the sequence up to the last of these
    table: Tensor  # its pages, int64


class PrefillFrame:
    """Several tokens per sequence; each sequence is attended to separately."""

    def __init__(
        self, cache: KVCache, pages: Tensor, offsets: Tensor, chunks: Sequence[PrefillChunk]
    ) -> None:
        """`pages` and `offsets` say where every token of the call is cached."""
        self._cache = cache
        self._pages, self._offsets = pages, offsets
        self._chunks = [
            (chunk, causal_mask(chunk.count, chunk.length, pages.device)) for chunk in chunks
        ]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Causal attention of every sequence to its own tokens."""
        self._cache.write(layer, self._pages, self._offsets, key, value)
        out = query.new_empty(1, query.shape[2], query.shape[1], value.shape[-1])
        for chunk, mask in self._chunks:
            keys, values = (part.to(query.dtype) for part in self._row(layer, chunk))
            span = slice(chunk.start, chunk.start + chunk.count)
            out[:, span] = attend_causally(query[:, :, span], keys, values, mask, scale)
        return out

    def _row(self, layer: int, chunk: PrefillChunk) -> tuple[Tensor, Tensor]:
        if len(chunk.table) == 1:
            page = int(chunk.table[0])
            keys, values = self._cache.keys[layer], self._cache.values[layer]
            both = keys[page : page + 1], values[page : page + 1]
        else:
            both = self._cache.gather(layer, chunk.table[None])
        return both[0][:, :, : chunk.length], both[1][:, :, : chunk.length]


def attend_causally(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    """Attention of a sequence's last tokens to all of its tokens, [1, tokens, heads, size].

    Args:
        query: of the last tokens, [1, heads, tokens, size].
        keys: of all tokens, [1, heads, length, size]; several queries may share a head.
        values: the same.
        mask: as `causal_mask` makes it for these tokens.
        scale: of the products.
    """
    is_causal = mask is None and query.shape[2] > 1
    attended = scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=True
    )
    return attended.transpose(1, 2)


def causal_mask(count: int, length: int, device: torch.device) -> Tensor | None:
    """Which of `length` tokens each of the last `count` sees, bool [count, length].

    None if the argument `is_causal` expresses it.
    """
    if count in (1, length):
        return None
    full = torch.ones(count, length, dtype=torch.bool, device=device)
    return full.tril(length - count)


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """Sequences that are read together: adjacent single pages, or those of a table."""

    rows: slice
    pages: slice | Tensor
    longest: int
    mask: Tensor | None  # 0 for a row's tokens, minus infinity behind: [rows, 1, 1, longest]

    @classmethod
    def of(
        cls,
        rows: slice,
        pages: slice | Tensor,
        lengths: Sequence[int],
        device: torch.device,
        dtype: torch.dtype,
    ) -> Self:
        """The group of some of the call's sequences; `lengths` are those of all."""
        chunk_lengths = lengths[rows]
        longest = max(chunk_lengths)
        if min(chunk_lengths) == longest:
            return cls(rows, pages, longest, None)
        ends = torch.tensor(chunk_lengths, device=device).unsqueeze(1)
        beyond = torch.arange(longest, device=device) >= ends
        mask = torch.zeros(beyond.shape, dtype=dtype, device=device)
        return cls(rows, pages, longest, mask.masked_fill_(beyond, -torch.inf)[:, None, None])


class DecodeFrame:
    """One token per sequence. Sequences of one page, in adjacent pages, are read without a copy."""

    def __init__(
        self,
        cache: KVCache,
        tables: Sequence[Sequence[int]],
        lengths: Sequence[int],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """`tables`: pages of every sequence; `lengths`: its tokens, the new one included.

        Sequences of one page must come first.
        """
        self._cache = cache
        last = [
            (table[(n - 1) // cache.size], (n - 1) % cache.size)
            for table, n in zip(tables, lengths, strict=True)
        ]
        places = torch.tensor(last, device=device)
        self._pages, self._offsets = places[:, 0], places[:, 1]
        single = sum(n <= cache.size for n in lengths)
        pages = [table[0] for table in tables[:single]]
        self._groups = [
            _DecodeGroup.of(
                rows, slice(pages[rows.start], pages[rows.stop - 1] + 1), lengths, device, dtype
            )
            for rows in _contiguous_groups(pages, lengths)
        ]
        if single == len(tables):
            return
        width = -(-max(lengths) // cache.size)
        padded = [[*t[:width], *[t[0]] * (width - len(t))] for t in tables[single:]]
        rest, rows = torch.tensor(padded, device=device), slice(single, len(tables))
        self._groups.append(_DecodeGroup.of(rows, rest, lengths, device, dtype))

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attention of every token to its own sequence."""
        self._cache.write(layer, self._pages, self._offsets, key, value)
        rows, heads = query.shape[2], key.shape[1]
        # Queries that share a key head take the place of several queries of one head.
        split = query[0].transpose(0, 1).reshape(rows, heads, -1, query.shape[-1])
        parts = []
        for group in self._groups:
            keys, values = (part.to(query.dtype) for part in self._read(layer, group))
            span = scaled_dot_product_attention(
                split[group.rows], keys, values, attn_mask=group.mask, scale=scale
            )
            parts.append(span)
        out = parts[0] if len(parts) == 1 else torch.cat(parts)
        return out.reshape(1, rows, query.shape[1], -1)

    def _read(self, layer: int, group: _DecodeGroup) -> tuple[Tensor, Tensor]:
        if isinstance(group.pages, slice):
            both = self._cache.keys[layer][group.pages], self._cache.values[layer][group.pages]
        else:
            both = self._cache.gather(layer, group.pages)
        return both[0][:, :, : group.longest], both[1][:, :, : group.longest]


def _contiguous_groups(pages: Sequence[int], lengths: Sequence[int]) -> list[slice]:
    """Sequences in adjacent pages, split where padding would cost more than another call."""
    groups: list[slice] = []
    start = longest = 0
    for row, page in enumerate(pages):
        size, count = lengths[row], row - start
        padding = longest - size if size <= longest else count * (size - longest)
        if count and (page != pages[row - 1] + 1 or padding > _PADDING):
            groups.append(slice(start, row))
            start, longest = row, 0
        longest = max(longest, size)
    return [*groups, slice(start, len(pages))] if pages else []
