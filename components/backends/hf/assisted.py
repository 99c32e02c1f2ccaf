"""Assisted generation: a small model guesses ids, which the model checks several at a time.

Noise is a fixed field (`components/decoding/noise.py`), so what is drawn at a place depends on the
ids before it alone, and no guess changes a text. The assistant's guesses are drawn with the same
noise, which makes more of them right.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
)

from components.decoding.fast_draw import sample
from components.decoding.sampling import SamplingTensors, not_finite
from components.decoding.sequence import TokenSequence
from components.models.checkpoint import prepare, resolve
from components.models.loading import LoadableQuantization, load_model
from components.models.tokenizer_loading import load_tokenizer
from pipeline.spec import ModelSpec, SpecError, require


def load_assistant(
    path: str,
    model: PreTrainedModel,
    vocabulary: Mapping[str, int],
    cache: Path,
    quantization: LoadableQuantization,
) -> PreTrainedModel:
    """The assistant of a loaded model, in the same numbers.

    Args:
        path: hub id, folder or file.
        model: whose ids it is to guess.
        vocabulary: of the model's tokenizer.
        cache: where converted models are kept.
        quantization: the model's own.

    Raises:
        SpecError: its ids are not the model's.
    """
    spec = ModelSpec(name="assistant", path=path)
    try:
        checkpoint = prepare(resolve(spec, cache), cache)
    except SpecError as error:
        raise SpecError(f"backend.assistant_model={path}: {error}") from error
    same = load_tokenizer(checkpoint, spec).get_vocab() == vocabulary
    require(same, "backend.assistant_model", "have the tokenizer of the model", path)
    assistant = load_model(checkpoint, spec, quantization, model.device)
    own, other = (each.config.get_text_config().vocab_size for each in (model, assistant))
    rule = f"have logits for {own} ids, as the model, not for {other}"
    require(own == other, "backend.assistant_model", rule, path)
    return assistant.to(model.dtype)  # type: ignore[arg-type, no-any-return]


class AssistedDecoder:
    """Decodes one sequence at a time through Transformers' `generate`."""

    def __init__(self, model: PreTrainedModel, assistant: PreTrainedModel, allowed: Tensor) -> None:
        """`allowed`: bool [vocabulary], True for ids that the tokenizer has."""
        make: Any = GenerationConfig
        assistant.generation_config = make()
        self._model: Any = model
        self._assistant = assistant
        self._allowed = allowed

    def run(self, sequence: TokenSequence) -> None:
        """Decode to the end.

        Raises:
            FloatingPointError: the model's logits are not finite.
            ValueError: the model's cache cannot go back to where a guess was wrong.
        """
        draws = _Draws(sequence, self._allowed)
        ids = torch.tensor([sequence.ids], device=self._model.device)
        make: Any = GenerationConfig
        config = make(
            do_sample=False,
            max_new_tokens=sequence.num_remaining,
            use_cache=True,
            pad_token_id=0,
        )
        self._model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            generation_config=config,
            assistant_model=self._assistant,
            logits_processor=LogitsProcessorList([draws]),
            stopping_criteria=StoppingCriteriaList([_Accepted(sequence, draws)]),
        )


class _Draws(LogitsProcessor):
    """Draws the id at each place that either model comes to, and makes `generate` take it.

    The model comes to a place after the assistant, so what is remembered of it is the model's.
    """

    def __init__(self, sequence: TokenSequence, allowed: Tensor) -> None:
        self.drawn: dict[int, tuple[int, float, float]] = {}  # index: id, entropy, logprob
        self._sequence = sequence
        self._allowed = allowed
        self._settings = SamplingTensors.of([sequence.filters], allowed.device)
        self._seed = torch.tensor([sequence.seed], device=allowed.device)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Take raw float32 logits [1, vocabulary]; return 0 for the drawn id, else -inf."""
        index = input_ids.shape[1] - len(self._sequence.prompt.ids)
        seen = None
        if self._settings.penalises:
            seen = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, input_ids, True)
        changed, strategy = None, self._sequence.strategy
        if strategy is not None:
            ids = input_ids[0].tolist()
            changed = strategy.changed(scores[0], ids, self._allowed)[None]
        places = torch.tensor([index], device=scores.device)
        found = sample(
            scores, self._settings, self._seed, places, self._allowed, seen, changed=changed
        )
        numbers = torch.cat((found.entropies, found.logprobs)).tolist()
        self.drawn[index] = int(found.tokens), numbers[0], numbers[1]
        return torch.full_like(scores, -torch.inf).scatter_(-1, found.tokens[:, None], 0.0)


class _Accepted(StoppingCriteria):
    """Hands the ids that were checked to the sequence, and says whether it has ended."""

    def __init__(self, sequence: TokenSequence, draws: _Draws) -> None:
        self._sequence, self._draws = sequence, draws

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        """One bool."""
        sequence = self._sequence
        count = input_ids.shape[1] - len(sequence.prompt.ids)
        for index in range(len(sequence.token_ids), count):
            if sequence.finished:
                break
            token, entropy, logprob = self._draws.drawn.pop(index)
            if not torch.isfinite(torch.tensor(entropy + logprob)):
                raise not_finite()
            sequence.accept([token], [entropy], [logprob])
        return torch.tensor([sequence.finished], device=input_ids.device)
