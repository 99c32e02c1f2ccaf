"""The reference decoder: Transformers' `generate` over static batches."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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

from components.backends.hf.assisted import AssistedDecoder
from components.backends.hf.beams import BeamSearch, Score
from components.backends.hf.lockstep import AllEnded, Lockstep
from components.backends.hf.padding import Sharing, padded, rotary_switch, separate, sharing
from components.backends.hf.phase_times import PhaseTimes
from components.backends.hf.rowwise import make_repeatable
from components.decoding.fast_draw import draw
from components.decoding.sampling import SamplingTensors, entropy_and_logsumexp, not_finite
from components.decoding.sequence import TokenSequence, changed_logits
from components.models.out_of_memory import out_of_memory
from pipeline.protocols import BackendLostError

Finish = Callable[[TokenSequence], None]
_LOG = logging.getLogger(__name__)


class StaticDecoder:
    """Decodes batches to the end; a batch takes as long as its longest sequence."""

    def __init__(
        self,
        model: PreTrainedModel,
        allowed: Tensor,
        use_cache: bool,
        threads: int,
        score: Score,
        assistant: PreTrainedModel | None = None,
        lockstep: Lockstep | None = None,
        phases: PhaseTimes | None = None,
    ) -> None:
        """Prepare `model`, and find out what its batches may hold.

        The model's generation config is emptied, so that none of its settings reach a row. A
        float32 model on the CPU gets an attention that does not depend on the batch.

        Args:
            model: on its device.
            allowed: bool [vocabulary] on that device, True for ids that the tokenizer has.
            use_cache: whether steps reuse keys, values and states.
            threads: CPU threads of a step.
            score: measures the texts that a beam search found.
            assistant: guesses ids; then sequences are decoded one by one.
            lockstep: the other ranks, where several share the work.
            phases: told what prefill and decoding take; beams and guesses count as decoding.
        """
        model.generation_config = _config()
        if model.device.type == "cpu" and model.dtype == torch.float32:
            make_repeatable(model)
        self._model: Any = model
        self._lockstep = lockstep
        self._allowed = allowed
        self._phases = phases or PhaseTimes(lambda: 0)
        self._use_cache = use_cache
        self._threads = threads
        self._switch = rotary_switch(model)
        self._assisted = AssistedDecoder(model, assistant, allowed) if assistant else None
        self._beams = BeamSearch(model, allowed, use_cache, score)
        self._sharing = sharing(model, use_cache)
        if self._sharing is not Sharing.PADDED:
            _LOG.warning("the model mixes padded rows: %s share a batch", self._sharing.value)

    def run(self, sequences: Sequence[TokenSequence], finish: Finish) -> None:
        """Decode sequences; `finish` is called with each as soon as it has ended.

        What goes wrong with one of them alone, as with its format or where the model's logits are
        not finite, becomes its `failure`.

        Raises:
            RuntimeError: what torch raises, out of memory included; sequences keep what they have.
        """
        torch.set_num_threads(self._threads)  # holds for the calling thread
        searches = [each for each in sequences if each.request.sampling.num_beams > 1]
        self._one_by_one(self._beams.run, searches, finish)
        sequences = [each for each in sequences if each.request.sampling.num_beams == 1]
        if self._assisted is not None:
            self._one_by_one(self._assisted.run, sequences, finish)
            return
        for part in separate(sequences, self._sharing, self._switch):
            unfinished = [sequence for sequence in part if not sequence.finished]
            if unfinished:
                self._generate(unfinished, finish)

    def _one_by_one(
        self,
        decode: Callable[[TokenSequence], None],
        sequences: Sequence[TokenSequence],
        finish: Finish,
    ) -> None:
        """Decode sequences alone, each to its end; what one raises is its own failure."""
        for sequence in sequences:
            if sequence.finished:
                continue
            sequence.start_time = sequence.start_time or time.perf_counter()
            try:
                with self._phases.of("decode"), torch.inference_mode(), within_context(self._model):
                    decode(sequence)
            except Exception as error:
                if out_of_memory(error):
                    raise
                sequence.fail(error)
            if not sequence.cancelled:
                finish(sequence)

    def _generate(self, sequences: Sequence[TokenSequence], finish: Finish) -> None:
        started = time.perf_counter()
        for sequence in sequences:
            sequence.start_time = sequence.start_time or started
        most_new = max(sequence.num_remaining for sequence in sequences)
        rows = [sequence.ids for sequence in sequences]
        step = _Step(sequences, self._allowed, finish, self._phases, self._lockstep)
        ended: StoppingCriteria = _Ended(step)
        given: dict[str, Any] = {}
        if self._lockstep is not None:
            rows, ended = self._lockstep.begin(rows, most_new), AllEnded(step)
            given["synced_gpus"] = False  # the ranks end at the same step
        config = _config(
            do_sample=False, max_new_tokens=most_new, use_cache=self._use_cache, pad_token_id=0
        )
        self._phases.begin()
        try:
            with torch.inference_mode(), within_context(self._model), _together(self._lockstep):
                self._model.generate(
                    **padded(rows, self._allowed.device),
                    generation_config=config,
                    logits_processor=LogitsProcessorList([step]),
                    stopping_criteria=StoppingCriteriaList([ended]),
                    **given,
                )
        finally:
            self._phases.lap(step.phase)

    def follow(self, message: dict[str, Any]) -> None:
        """Ranks above 0: make the call of `generate` that rank 0 makes."""
        assert self._lockstep is not None, "only of several ranks"
        torch.set_num_threads(self._threads)
        with torch.inference_mode(), within_context(self._model):
            self._lockstep.call(self._model, message, _config, self._use_cache)


class _Step(LogitsProcessor):
    """Measures raw logits, draws the id of every row, and makes `generate` take it."""

    def __init__(
        self,
        sequences: Sequence[TokenSequence],
        allowed: Tensor,
        finish: Finish,
        phases: PhaseTimes,
        lockstep: Lockstep | None,
    ) -> None:
        device = allowed.device
        self.phase = "prefill"  # until the first ids are drawn
        self._phases = phases
        self.finished = torch.zeros(len(sequences), dtype=torch.bool, device=device)
        self._sequences = sequences
        self._allowed = allowed
        self._finish = finish
        self._settings = SamplingTensors.of([sequence.filters for sequence in sequences], device)
        self._measures = any(sequence.request.entropy for sequence in sequences)
        self._seeds = torch.tensor([sequence.seed for sequence in sequences], device=device)
        self._indices = torch.tensor(
            [len(sequence.token_ids) for sequence in sequences], device=device
        )
        self._lockstep = lockstep
        self._seen: Tensor | None = None
        self._over: set[int] = set()  # places of sequences that `finish` was called with

    @property
    def all_finished(self) -> bool:
        """Whether every row has ended."""
        return bool(self.finished.all())

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Take raw float32 logits [rows, vocabulary]; return 0 for the drawn ids, else -inf."""
        self._phases.lap(self.phase)
        self.phase = "decode"
        lockstep = self._lockstep
        if lockstep is None:
            forced = torch.full_like(scores, -torch.inf)
            return forced.scatter_(-1, self._draw(scores).unsqueeze(-1), 0.0)
        every = lockstep.logits(scores)
        try:
            tokens = self._draw(every)
        except Exception as error:
            lockstep.give_up()
            raise _BetweenSteps from error
        lockstep.tell(tokens, self.finished)
        return lockstep.forced(tokens, scores.shape[-1])

    def _draw(self, scores: Tensor) -> Tensor:
        """Draw the ids of all rows [rows] from their raw logits, and take them."""
        self._prepare_seen(scores.shape[-1])
        changed = changed_logits(scores, self._sequences, self._allowed)
        of = self._settings, self._seeds, self._indices, self._allowed, self._seen
        tokens = draw(changed, *of)
        self._indices += 1
        self._accept(tokens, *self._measure(scores, tokens))
        if self._seen is not None:
            self._seen.scatter_(-1, tokens.unsqueeze(-1), True)
        return tokens

    def _measure(self, logits: Tensor, tokens: Tensor) -> tuple[list[float], list[float]]:
        chosen = logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        entropy = total = chosen  # their difference is 0, or NaN where the logits are not finite
        if self._measures:
            entropy, total = entropy_and_logsumexp(logits)
        entropies, logprobs = torch.stack((entropy, chosen - total)).tolist()
        return entropies, logprobs

    def _accept(self, tokens: Tensor, entropies: list[float], logprobs: list[float]) -> None:
        finished = []
        for place, (sequence, token, entropy, logprob) in enumerate(
            zip(self._sequences, tokens.tolist(), entropies, logprobs, strict=True)
        ):
            if not sequence.finished and not math.isfinite(entropy + logprob):
                sequence.fail(not_finite())
            if not sequence.finished:
                sequence.accept([token], [entropy], [logprob])
            if sequence.finished and not sequence.cancelled and place not in self._over:
                self._over.add(place)
                self._finish(sequence)
            finished.append(sequence.finished)
        self.finished = torch.tensor(finished, device=tokens.device)

    def _prepare_seen(self, size: int) -> None:
        """Mark the ids that each row begins with, for repetition penalties."""
        if not self._settings.penalises or self._seen is not None:
            return
        self._seen = torch.zeros(
            len(self._sequences), size, dtype=torch.bool, device=self._allowed.device
        )
        for seen, sequence in zip(self._seen, self._sequences, strict=True):
            seen[sequence.ids] = True


class _Ended(StoppingCriteria):
    """Tells `generate` which rows have ended; the batch ends with the last."""

    def __init__(self, step: _Step) -> None:
        self._step = step

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        """One bool per row."""
        return self._step.finished


class _BetweenSteps(Exception):
    """An error in drawing, its cause, after which all ranks have ended the call."""


@contextmanager
def _together(lockstep: Lockstep | None) -> Iterator[None]:
    """Tell errors that end one call from those that leave the other ranks in the middle of one."""
    if lockstep is None:
        yield
        return
    try:
        yield
    except _BetweenSteps as error:
        assert error.__cause__ is not None
        raise error.__cause__ from None
    except Exception as error:
        raise BackendLostError(
            f"rank 0 failed in the middle of a step ({type(error).__name__}: {error}); the same "
            "command goes on from the finished rows, with a lower backend.batch_size if memory "
            f"ran out{_also(lockstep)}"
        ) from error


def _also(lockstep: Lockstep) -> str:
    return f"; {lockstep.links.lost}" if lockstep.links.lost else ""


@contextmanager
def within_context(model: Any) -> Iterator[None]:
    """Keep positions within the context: rows that have ended are computed on with their batch."""
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)

    def clamp(_: Any, args: Any, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        positions = given.get("position_ids")
        if positions is not None and context is not None:
            given["position_ids"] = positions.clamp(max=context - 1)
        return args, given

    hook = model.register_forward_pre_hook(clamp, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


def _config(**values: Any) -> GenerationConfig:
    """A generation config of nothing but `values`."""
    make: Callable[..., GenerationConfig] = GenerationConfig
    return make(**values)
