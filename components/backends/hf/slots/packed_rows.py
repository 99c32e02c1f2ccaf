"""Given rows read by a model with the decoder's attention: packed one after another, in pieces."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from components.backends.hf.slots.attention import attend_causally, causal_mask, using_frame
from components.decoding.forced_rows import Visit
from pipeline.protocols import ForcedTokens


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive ids of one row in a call of the model.

    `first` is the row's position of the first of `count` ids; `wanted` of the last of these have
    logits that score an id.
    """

    row: int
    first: int
    count: int
    wanted: int


def pieces_of(
    rows: Sequence[ForcedTokens], most_tokens: int, most_logits: int
) -> list[list[Piece]]:
    """The calls that read all rows, in their order.

    A call has at most `most_tokens` ids, of which at most `most_logits` have logits that are
    wanted. The last given id of a row is not read: nothing follows it.
    """
    calls: list[list[Piece]] = [[]]
    tokens = logits = 0
    for number, row in enumerate(rows):
        start, end = len(row.prompt_ids) - 1, len(row.prompt_ids) + len(row.token_ids) - 1
        first = 0
        while first < end and row.token_ids:
            if tokens >= most_tokens or logits >= most_logits:
                calls.append([])
                tokens = logits = 0
            last = min(end, first + most_tokens - tokens)
            last = min(last, max(first, start) + most_logits - logits)
            wanted = max(0, last - max(first, start))
            calls[-1].append(Piece(number, first, last - first, wanted))
            tokens, logits, first = tokens + last - first, logits + wanted, last
    return [call for call in calls if call]


class RowsFrame:
    """Every piece attends to its own row; keys and values of a row that goes on are kept."""

    def __init__(self) -> None:
        self._pieces: Sequence[Piece] = ()
        self._masks: list[Tensor | None] = []
        self._goes_on = False
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    def expect(self, pieces: Sequence[Piece], goes_on: bool, device: torch.device) -> None:
        """The next call reads these; `goes_on`: the last one's row is continued afterwards."""
        self._pieces, self._goes_on = pieces, goes_on
        self._masks = [causal_mask(p.count, p.first + p.count, device) for p in pieces]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """As `Frame.attend`."""
        out = query.new_empty(1, query.shape[2], query.shape[1], value.shape[-1])
        start = 0
        for piece, mask in zip(self._pieces, self._masks, strict=True):
            span = slice(start, start + piece.count)
            keys, values = key[:, :, span], value[:, :, span]
            if piece.first:  # only the first piece of a call continues a row
                past_keys, past_values = self._kept.pop(layer)
                keys, values = torch.cat([past_keys, keys], 2), torch.cat([past_values, values], 2)
            out[:, span] = attend_causally(query[:, :, span], keys, values, mask, scale)
            start += piece.count
        if self._goes_on:
            self._kept[layer] = (keys, values)
        return out


class PackedRows:
    """Reads rows as the decoder's prefill does: no padding, memory bounded by the calls."""

    def __init__(self, model: PreTrainedModel, most_tokens: int) -> None:
        """`most_tokens`: ids of one call of the model."""
        self._model: Any = model
        self._most_tokens = most_tokens

    def read(self, rows: Sequence[ForcedTokens], most_logits: int, visit: Visit) -> None:
        """As `ForcedRows.read`."""
        frame = RowsFrame()
        calls = pieces_of(rows, max(1, min(self._most_tokens, 8 * most_logits)), most_logits)
        for number, pieces in enumerate(calls):
            following = calls[number + 1][0] if number + 1 < len(calls) else None
            goes_on = following is not None and following.first > 0
            frame.expect(pieces, goes_on, self._model.device)
            self._call(rows, pieces, frame, visit)

    def _call(
        self, rows: Sequence[ForcedTokens], pieces: Sequence[Piece], frame: RowsFrame, visit: Visit
    ) -> None:
        ids: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        for piece in pieces:
            row = [*rows[piece.row].prompt_ids, *rows[piece.row].token_ids]
            ids += row[piece.first : piece.first + piece.count]
            positions += range(piece.first, piece.first + piece.count)
            wanted += range(len(ids) - piece.wanted, len(ids))
        device = self._model.device
        with torch.inference_mode(), using_frame(frame):
            out = self._model(
                input_ids=torch.tensor([ids], device=device),
                position_ids=torch.tensor([positions], device=device),
                use_cache=False,
                logits_to_keep=torch.tensor(wanted or [0], device=device),
            )
            logits, start = out.logits[0], 0
            for piece in pieces:
                if piece.wanted:
                    first = piece.first + piece.count - piece.wanted
                    index = first - len(rows[piece.row].prompt_ids) + 1
                    visit(piece.row, index, logits[start : start + piece.wanted])
                start += piece.wanted
