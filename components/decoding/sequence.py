"""One request on its way through a decoder: its ids so far, and what ends it."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from components.decoding.detokenizers import ByteIds, Pieces
from components.decoding.prompt_encoder import Encoded
from components.decoding.stop_text import StopText
from components.decoding.strategy import RowStrategy
from components.models.out_of_memory import out_of_memory
from pipeline.protocols import FinishReason, Generation, Request
from pipeline.spec import Sampling


@dataclass(frozen=True, slots=True)
class Limits:
    """What ends a sequence besides its own stop strings and cap."""

    end_ids: frozenset[int]
    context: int | None  # positions that the model has


class TokenSequence:
    """A prompt and the ids generated so far.

    A decoder may drop what it has cached and recompute it from `ids`; `accept` takes each new id
    once.
    """

    def __init__(
        self,
        request: Request,
        prompt: Encoded,
        limits: Limits,
        decode: Callable[[Sequence[int]], str],
        pieces: Pieces | ByteIds | None = None,
        strategy: RowStrategy | None = None,
    ) -> None:
        """`decode` and `pieces` are those of the prompt's encoder.

        `strategy` is there where the request's sampling changes logits row by row.
        """
        self.request = request
        self.strategy = strategy
        self.prompt = prompt
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.cancelled = False
        self.failure: BaseException | None = None  # why it ended without a generation
        self.start_time: float | None = None
        self._limits = limits
        self._entropies: list[float] = []
        self._logprobs: list[float] = []
        context = limits.context or sys.maxsize
        self._max_new = context - len(prompt.ids)  # for new ids
        self._decoding = decode, request.stop, prompt.ids, pieces
        self._text = StopText(*self._decoding)
        self._end_time = 0.0

    @property
    def ids(self) -> list[int]:
        """All ids: the prompt's and the new ones."""
        return self.prompt.ids + self.token_ids

    @property
    def filters(self) -> Sampling:
        """The filters that its logits are to pass, once they are as `changed_logits` gives them."""
        return self.request.sampling if self.strategy is None else self.strategy.filters

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that end the model's turn."""
        return self._limits.end_ids

    def stops_within(self, ids: Sequence[int]) -> bool:
        """Whether `ids`, generated in place of its own, hold a stop string."""
        if not self.request.stop:
            return False
        text = StopText(*self._decoding)
        text.push_all(ids)
        return text.stopped

    @property
    def num_remaining(self) -> int:
        """How many more ids may come: up to the cap or the end of the context."""
        return min(self.request.cap, self._max_new) - len(self.token_ids)

    @property
    def finished(self) -> bool:
        """Whether it has ended, with or without a generation."""
        return self.cancelled or self.failure is not None or self.finish_reason is not None

    def fail(self, error: BaseException) -> None:
        """End without a generation: `error` is what whoever waits for it gets."""
        self.failure = self.failure or error

    @property
    def seed(self) -> int:
        """The request's 64-bit seed as a signed number."""
        seed = self.request.seed & ((1 << 64) - 1)
        return seed - (1 << 64) if seed >> 63 else seed

    def accept(
        self, tokens: Sequence[int], entropies: Sequence[float], logprobs: Sequence[float]
    ) -> int:
        """Take the next ids up to the one that ends the sequence; return how many were taken.

        Text that later ids cannot change goes to `on_token`. What goes wrong with this sequence
        alone, as with its text or its format, becomes its `failure`.
        """
        if self.failure is not None:
            return 0
        try:
            return self._accept(tokens, entropies, logprobs)
        except Exception as error:  # a step is shared: the other sequences go on
            if out_of_memory(error):
                raise
            self.fail(error)
            return 0

    def _accept(
        self, tokens: Sequence[int], entropies: Sequence[float], logprobs: Sequence[float]
    ) -> int:
        num_remaining = self.num_remaining
        candidates = tokens[:num_remaining]
        ends, text = self._limits.end_ids, self._text
        if ends.isdisjoint(candidates):
            count = text.push_all(candidates)
            if text.stopped:
                self.finish_reason = "stop_token"
            elif count == num_remaining:
                self.finish_reason = (
                    "max_new_tokens" if self.request.cap <= self._max_new else "max_context"
                )
        else:
            count = self._accept_end(candidates)
        self.token_ids += candidates[:count]
        if self.finish_reason not in ("eos", "stop_token") and self._is_complete():
            self.finish_reason = "stop_token"
        if self.request.entropy:
            self._entropies += entropies[:count]
            self._logprobs += logprobs[:count]
        if self.finish_reason is not None:
            self._text.finish()
            self._end_time = time.perf_counter()
        if self.request.on_token is not None and (new := text.take()):
            self.request.on_token(new)
        return count

    def _is_complete(self) -> bool:
        """Whether its format lets nothing follow."""
        grammar = self.strategy.grammar if self.strategy else None
        return grammar is not None and grammar.is_complete(self.token_ids)

    def _accept_end(self, tokens: Sequence[int]) -> int:
        """Take ids of which one is an end of sequence."""
        end = next(n for n, token in enumerate(tokens) if token in self._limits.end_ids)
        count = self._text.push_all(tokens[:end])
        if self._text.stopped:
            self.finish_reason = "stop_token"
            return count
        self.finish_reason = "stop_token" if self._text.push_end(tokens[end]) else "eos"
        return end + 1

    def generation(self) -> Generation:
        """The record of a finished sequence."""
        assert self.finish_reason is not None and self.start_time is not None
        wanted = self.request.entropy
        return Generation(
            token_ids=self.token_ids,
            text=self._text.text,
            tail=self._text.tail,
            finish_reason=self.finish_reason,
            prompt_tokens=len(self.prompt.ids),
            prompt_ids=list(self.prompt.ids),
            entropies=self._entropies if wanted else None,
            logprobs=self._logprobs if wanted else None,
            ends=self._text.ends,
            seconds=self._end_time - self.start_time,
            prompt_cut=self.prompt.cut,
        )


def changed_logits(
    logits: Tensor, sequences: Sequence[TokenSequence], allowed: Tensor | None
) -> Tensor:
    """What the next ids are drawn from: raw logits [rows, vocabulary], changed where rows say so.

    `allowed` is as of `RowStrategy.changed`. A row whose strategy raises gets its error as
    `failure`, and its raw logits.

    Raises:
        MemoryError, RuntimeError: memory ran out.
    """
    changing = [n for n, each in enumerate(sequences) if each.strategy and not each.finished]
    if not changing:
        return logits
    changed = logits.float().clone()
    for row in changing:
        strategy = sequences[row].strategy
        assert strategy is not None
        try:
            changed[row] = strategy.changed(changed[row], sequences[row].ids, allowed)
        except Exception as error:  # a step is shared: the other sequences go on
            if out_of_memory(error):
                raise
            sequences[row].fail(error)
    return changed
