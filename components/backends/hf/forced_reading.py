"""Given rows read by a model with its own attention: several ids a call, else one by one.

Reading several ids in a call gives what decoding gives in most models. In some it does not, such as
memory models that route on the context of a call; those are read by `generate`, made to draw the
given ids, so that every row is computed exactly as the reference decoder would have computed it.
"""

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
)

from components.backends.hf.padding import Sharing, padded, rotary_switch, sharing
from components.backends.hf.slots.packed_rows import PackedRows
from components.backends.hf.slots.torch_steps import rotates_alike
from components.backends.hf.static import within_context
from components.decoding.forced_rows import ForcedRows, Visit
from components.decoding.shared_rows import SharedRows
from components.models.architectures.outputs import CACHE, cache_of
from pipeline.protocols import ForcedTokens

_LOG = logging.getLogger(__name__)
_CALL = {"cpu": 1024, "cuda": 8192}  # ids of one call
_TRIAL = ((9, 8), (33, 5), (1, 3))  # prompt and given ids of rows
_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}  # of the logits' norm; else:
_COARSE = 0.05


def reader_for(model: PreTrainedModel, paged: bool, use_cache: bool) -> ForcedRows:
    """What reads rows as exactly as the decoder would, in as few calls as the model allows.

    Args:
        model: on its device.
        paged: it has the attention of slots.
        use_cache: whether `generate` keeps keys and values; some models read differently without.
    """
    most = _CALL.get(model.device.type, _CALL["cpu"])
    if paged:
        return SharedRows(PackedRows(model, most))
    forced = ForcedSteps(model, use_cache)
    together = CachedCalls(model, most)
    if forced.sharing is Sharing.PADDED and rotates_alike(model) and _agree(together, forced):
        return SharedRows(together)
    _LOG.warning("this model's given ids are scored one by one, as slowly as they were generated")
    return forced


class WithOwnAttention:
    """Reads rows with the attention that the model came with, where the decoder gave it another."""

    def __init__(self, model: PreTrainedModel, attention: str, use_cache: bool) -> None:
        """`attention`: the implementation that the model came with."""
        self._model, self._attention, self._use_cache = model, attention, use_cache
        self.reader: ForcedRows | None = None

    def read(self, rows: Sequence[ForcedTokens], most_logits: int, visit: Visit) -> None:
        """As `ForcedRows.read`."""
        decoders = self._model.config.get_text_config()._attn_implementation
        self._model.set_attn_implementation(self._attention)
        try:
            self.reader = self.reader or reader_for(self._model, False, self._use_cache)
            self.reader.read(rows, most_logits, visit)
        finally:
            self._model.set_attn_implementation(decoders)


class CachedCalls:
    """Reads padded rows in calls of several columns, with Transformers' cache between them."""

    def __init__(self, model: PreTrainedModel, most_tokens: int) -> None:
        """`most_tokens`: ids of one call of the model."""
        self._model: Any = model
        self._most_tokens = most_tokens

    def read(self, rows: Sequence[ForcedTokens], most_logits: int, visit: Visit) -> None:
        """As `ForcedRows.read`; each row is a batch of its own if it is long."""
        for group in _groups(rows, self._most_tokens):
            self._read(rows, group, max(1, most_logits // len(group)), visit)

    def _read(
        self, rows: Sequence[ForcedTokens], group: Sequence[int], columns: int, visit: Visit
    ) -> None:
        inputs = padded([_read_ids(rows[n]) for n in group], self._model.device)
        mask = inputs["attention_mask"]
        width, cache = mask.shape[1], None
        for start in range(0, width, columns):
            part = slice(start, start + columns)
            kept: dict[str, Any] = {} if cache is None else {CACHE: cache}
            with torch.inference_mode():
                out = self._model(
                    input_ids=inputs["input_ids"][:, part],
                    attention_mask=mask[:, : part.stop],
                    position_ids=inputs["position_ids"][:, part],
                    use_cache=True,
                    **kept,
                )
                cache = cache_of(out)
                for place, number in enumerate(group):
                    count = len(rows[number].token_ids)
                    first = max(start, width - count)
                    if first < start + out.logits.shape[1]:
                        visit(number, first - (width - count), out.logits[place, first - start :])


class ForcedSteps:
    """Reads rows by `generate`, which draws the given ids."""

    def __init__(self, model: PreTrainedModel, use_cache: bool) -> None:
        """Find out which rows may share a batch."""
        self._model: Any = model
        self._use_cache = use_cache
        self.sharing = sharing(model, use_cache)
        self._switch = rotary_switch(model)

    def read(self, rows: Sequence[ForcedTokens], most_logits: int, visit: Visit) -> None:
        """As `ForcedRows.read`, one position of every row in a batch at a time."""
        given = [number for number, row in enumerate(rows) if row.token_ids]
        alone = [number for number in given if self._is_alone(rows[number])]
        for number in alone:
            self._read(rows, [number], visit)
        shared = sorted(set(given) - set(alone), key=lambda n: len(rows[n].token_ids))
        for start in range(0, len(shared), most_logits):
            self._read(rows, shared[start : start + most_logits], visit)

    def _is_alone(self, row: ForcedTokens) -> bool:
        length = len(row.prompt_ids) + len(row.token_ids)
        switches = self._switch is not None and length > self._switch
        return switches or self.sharing is not Sharing.PADDED

    def _read(self, rows: Sequence[ForcedTokens], group: Sequence[int], visit: Visit) -> None:
        make: Any = GenerationConfig
        config = make(
            do_sample=False,
            max_new_tokens=max(len(rows[number].token_ids) for number in group),
            use_cache=self._use_cache,
            pad_token_id=0,
        )
        inputs = padded([rows[number].prompt_ids for number in group], self._model.device)
        self._model.generation_config = make()  # none of its settings may reach a row
        with torch.inference_mode(), within_context(self._model):
            self._model.generate(
                **inputs,
                generation_config=config,
                logits_processor=LogitsProcessorList([_Forced(rows, group, visit)]),
            )


class _Forced(LogitsProcessor):
    """Shows raw logits, and makes `generate` take the given ids."""

    def __init__(self, rows: Sequence[ForcedTokens], group: Sequence[int], visit: Visit) -> None:
        self._rows, self._group, self._visit = rows, group, visit
        self._step = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """0 for the given id of every row, else minus infinity."""
        forced = torch.full_like(scores, -torch.inf)
        for place, number in enumerate(self._group):
            ids = self._rows[number].token_ids
            if self._step < len(ids):
                self._visit(number, self._step, scores[place : place + 1])
            forced[place, ids[min(self._step, len(ids) - 1)]] = 0.0
        self._step += 1
        return forced


def _read_ids(row: ForcedTokens) -> list[int]:
    """All ids but the last, which nothing follows."""
    return [*row.prompt_ids, *row.token_ids][:-1]


def _groups(rows: Sequence[ForcedTokens], most_tokens: int) -> list[list[int]]:
    """Rows that have ids to score, the longest first, in batches of about `most_tokens`."""
    lengths = {n: len(_read_ids(row)) for n, row in enumerate(rows) if row.token_ids}
    groups: list[list[int]] = []
    for number in sorted(lengths, key=lambda n: -lengths[n]):
        if groups and (len(groups[-1]) + 1) * lengths[groups[-1][0]] <= most_tokens:
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups


def _agree(together: ForcedRows, forced: ForcedRows) -> bool:
    """Whether two ways to read give the same logits, by a trial."""
    one, other = _logits(together), _logits(forced)
    dtype = one[0].dtype
    errors = [
        float((a - b).double().norm() / b.double().norm()) for a, b in zip(one, other, strict=True)
    ]
    return max(errors) < _TOLERANCE.get(dtype, _COARSE)


def _logits(reader: ForcedRows) -> list[Tensor]:
    """The logits of the trial's rows, in calls of four positions."""
    rows = [
        ForcedTokens(range(5, 5 + count), [3 + 2 * n for n in range(given)])
        for count, given in _TRIAL
    ]
    parts: list[list[Tensor]] = [[] for _ in rows]
    reader.read(rows, 4 * len(rows), lambda row, index, logits: parts[row].append(logits.clone()))
    return [torch.cat(part) for part in parts]
