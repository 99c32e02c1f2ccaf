"""What changes the logits of one row before, or beyond, the filters that all rows share.

These are Transformers' own processors and a few more, each called with one row, so that no row
depends on others. Rows without a strategy never come here.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TypicalLogitsWarper,
)

from components.decoding.grammar import Grammar
from components.decoding.sampling import SamplingTensors, filtered
from pipeline.spec import Sampling, require

_CHANGING = (
    "typical_p",
    "presence_penalty",
    "frequency_penalty",
    "no_repeat_ngram_size",
    "min_new_tokens",
    "logit_bias",
    "regex",
    "json_schema",
)
_BARRING = ("no_repeat_ngram_size", "min_new_tokens", "regex", "json_schema")  # make -inf


def changing(sampling: Sampling) -> list[str]:
    """The keys of a sampling that are on and change logits row by row."""
    off = Sampling()
    return [name for name in _CHANGING if getattr(sampling, name) != getattr(off, name)]


class CountPenalties(LogitsProcessor):
    """OpenAI's presence and frequency penalties, over the ids that were generated."""

    def __init__(self, prompt_length: int, presence: float, frequency: float) -> None:
        """`presence` is taken off once for an id that came up, `frequency` each time it did."""
        self._start = prompt_length
        self._presence, self._frequency = presence, frequency

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores [rows, vocabulary] less the penalties of each row's ids."""
        counts = torch.zeros_like(scores)
        generated = input_ids[:, self._start :]
        counts.scatter_add_(-1, generated, torch.ones_like(generated, dtype=scores.dtype))
        return scores - self._frequency * counts - self._presence * (counts > 0)


def processors(
    sampling: Sampling, prompt_length: int, end_ids: Collection[int], device: torch.device
) -> LogitsProcessorList:
    """What changes raw logits before the filters, in the order that `Sampling` states."""
    chosen = LogitsProcessorList()
    if sampling.logit_bias:
        bias: Any = [[[token], float(value)] for token, value in sampling.logit_bias.items()]
        chosen.append(SequenceBiasLogitsProcessor(bias))
    if sampling.repetition_penalty != 1:
        chosen.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if sampling.no_repeat_ngram_size:
        chosen.append(NoRepeatNGramLogitsProcessor(sampling.no_repeat_ngram_size))
    if sampling.min_new_tokens and end_ids:
        least, ends = sampling.min_new_tokens, sorted(end_ids)
        chosen.append(
            MinNewTokensLengthLogitsProcessor(prompt_length, least, ends, device=str(device))
        )
    if sampling.presence_penalty or sampling.frequency_penalty:
        penalties = sampling.presence_penalty, sampling.frequency_penalty
        chosen.append(CountPenalties(prompt_length, *penalties))
    return chosen


class RowStrategy:
    """How the logits of one sequence change."""

    def __init__(
        self,
        sampling: Sampling,
        prompt_length: int,
        end_ids: Collection[int],
        grammar: Grammar | None,
    ) -> None:
        """`grammar` is there where the sampling has a format."""
        self.grammar = grammar
        self._sampling = sampling
        self._prompt_length = prompt_length
        self._end_ids = end_ids
        self._processors: LogitsProcessorList | None = None
        self._typical = sampling.typical_p < 1 and sampling.temperature > 0

    @property
    def filters(self) -> Sampling:
        """The filters that are left for whoever draws from the changed logits."""
        if self._typical:  # the last of all filters, so the others are applied here too
            return Sampling(temperature=1.0, top_p=1.0)
        return replace(self._sampling, repetition_penalty=1.0)

    def changed(self, logits: Tensor, ids: list[int], allowed: Tensor | None) -> Tensor:
        """What is drawn from in place of raw float32 logits [vocabulary].

        Args:
            logits: not changed.
            ids: of the prompt and of what was generated.
            allowed: bool [vocabulary], False for ids that the tokenizer does not have.

        Raises:
            SpecError: the format is too complex to follow, or no id is left to draw.
        """
        if self._processors is None:
            of = self._sampling, self._prompt_length, self._end_ids
            self._processors = processors(*of, logits.device)
        scores = logits.unsqueeze(0)
        if self._processors:
            inputs: Any = torch.tensor([ids], device=logits.device)
            scores = self._processors(inputs, scores.clone())
        if self.grammar is not None:
            fits = self.grammar.allowed(ids[self._prompt_length :], len(logits))
            scores = scores.masked_fill(~fits.to(logits.device), -torch.inf)
        self._refuse_nothing(scores[0], allowed)
        if self._typical:
            scores = self._only_typical(scores, allowed)
        return scores[0]

    def _refuse_nothing(self, scores: Tensor, allowed: Tensor | None) -> None:
        left = scores != -torch.inf
        if bool((left if allowed is None else left & allowed).any()):
            return
        keys = " and ".join(f"sampling.{name}" for name in _BARRING if self._bars(name))
        values = {name: getattr(self._sampling, name) for name in _BARRING if self._bars(name)}
        require(False, keys, "leave an id to draw at every step; here they bar all", values)

    def _bars(self, name: str) -> bool:
        return bool(getattr(self._sampling, name) != getattr(Sampling(), name))

    def _only_typical(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        others = replace(self._sampling, repetition_penalty=1.0)
        scores = filtered(scores, SamplingTensors.of([others], scores.device), allowed)
        inputs = torch.empty(1, 0, dtype=torch.int64, device=scores.device)
        kept: Tensor = TypicalLogitsWarper(mass=self._sampling.typical_p)(inputs, scores)
        return kept


def refuse_ids_beyond(sampling: Sampling, size: int) -> None:
    """Refuse a bias for an id that a vocabulary of `size` does not have."""
    beyond: Sequence[int] = [token for token in sampling.logit_bias or () if token >= size]
    require(not beyond, "sampling.logit_bias", f"name ids below the vocabulary's {size}", beyond)
