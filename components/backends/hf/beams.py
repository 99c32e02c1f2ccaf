"""Beam search: Transformers' own, for one prompt at a time, whose beams are its samples."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

from components.decoding.sampling import barred_by
from components.decoding.sequence import TokenSequence
from components.decoding.strategy import processors
from pipeline.protocols import ForcedTokens, TokenScores

_KEPT = 64  # searches whose beams are kept for samples that ask later
_NO_BEAM = -1e8  # scores below are of places that no text has taken

Beam = list[int]
Score = Callable[[Sequence[ForcedTokens]], list[TokenScores]]


class BeamSearch:
    """Finds the best texts of a prompt, once for all of its samples: beam k is sample k.

    Entropies and logprobs are those of the raw distribution, by reading each final text again.
    """

    def __init__(self, model: Any, allowed: Tensor, use_cache: bool, score: Score) -> None:
        """`allowed`: bool [vocabulary], True for ids that the tokenizer has."""
        self._score = score
        self._model = model
        self._barred = barred_by(allowed)
        self._use_cache = use_cache
        self._found: OrderedDict[str, list[Beam]] = OrderedDict()

    def run(self, sequence: TokenSequence) -> None:
        """Give a sequence the beam of its index.

        Raises:
            ValueError: the search ended with fewer texts than the sequence asks for.
        """
        beams = self._beams(sequence)
        if sequence.cancelled:
            return
        place = sequence.request.group.index
        if place >= len(beams):
            raise ValueError(
                f"the beam search found {len(beams)} texts: lower sampling.num_samples"
            )
        beam = beams[place]
        scores = TokenScores([], [])
        if sequence.request.entropy:
            (scores,) = self._score([ForcedTokens(sequence.prompt.ids, beam)])
        sequence.accept(beam, scores.entropies, scores.logprobs)

    def _beams(self, sequence: TokenSequence) -> list[Beam]:
        request = sequence.request
        key = repr((sequence.prompt.ids, request.stop, request.cap, request.sampling))
        if key not in self._found:
            found = self._search(sequence)
            if sequence.cancelled:  # it was broken off
                return []
            self._found[key] = found
        self._found.move_to_end(key)
        while len(self._found) > _KEPT:
            self._found.popitem(last=False)
        return self._found[key]

    def _search(self, sequence: TokenSequence) -> list[Beam]:
        """The new ids of every beam, the best first."""
        sampling = sequence.request.sampling
        prompt = torch.tensor([sequence.prompt.ids], device=self._model.device)
        make: Any = GenerationConfig
        config = make(
            do_sample=False,
            num_beams=sampling.num_beams,
            num_return_sequences=sampling.num_beams,
            length_penalty=sampling.length_penalty,
            early_stopping=sampling.early_stopping,
            max_new_tokens=sequence.num_remaining,
            use_cache=self._use_cache,
            eos_token_id=sorted(sequence.end_ids) or None,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_scores=True,
        )
        changes = processors(sampling, prompt.shape[1], sequence.end_ids, prompt.device)
        out = self._model.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            generation_config=config,
            logits_processor=LogitsProcessorList([_Existing(self._barred), *changes]),
            stopping_criteria=StoppingCriteriaList([_Stopped(sequence)]),
        )
        lengths = (out.beam_indices >= 0).sum(dim=-1).tolist()
        texts = out.sequences[:, prompt.shape[1] :].tolist()
        places = zip(texts, lengths, out.sequences_scores.tolist(), strict=True)
        return [text[:length] for text, length, score in places if score > _NO_BEAM]


class _Existing(LogitsProcessor):
    """Bars ids that the tokenizer does not have."""

    def __init__(self, barred: Tensor | None) -> None:
        self._barred = barred

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Minus infinity for those."""
        return scores if self._barred is None else scores + self._barred


class _Stopped(StoppingCriteria):
    """Ends a beam at a stop string, and the search once nobody waits for it."""

    def __init__(self, sequence: TokenSequence) -> None:
        self._sequence = sequence
        self._start = len(sequence.prompt.ids)

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        """One bool per beam."""
        if self._sequence.cancelled:
            return torch.ones(len(input_ids), dtype=torch.bool, device=input_ids.device)
        texts = [self._sequence.stops_within(row) for row in input_ids[:, self._start :].tolist()]
        return torch.tensor(texts, device=input_ids.device)
