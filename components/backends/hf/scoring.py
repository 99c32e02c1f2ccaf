"""Entropies and logprobs of given ids, with memory that does not grow with the rows."""

import gc
import logging
import traceback
from collections.abc import Callable, Sequence

import torch

from components.decoding.forced_rows import ForcedRows, Scores, Visit
from components.models.out_of_memory import out_of_memory
from pipeline.protocols import ForcedTokens, TokenScores
from pipeline.spec import SpecError, require

_LOG = logging.getLogger(__name__)
_LOGITS = 1 << 26  # numbers: 256 MB in float32, and a few times that while they are measured


class Scorer:
    """Scores rows with a model; to be called in the decoder's thread."""

    def __init__(
        self, make: Callable[[], ForcedRows], vocabulary: int, context: int | None
    ) -> None:
        """`make` makes the reader, at the first call; `context`: positions that the model has."""
        self._make = make
        self._reader: ForcedRows | None = None
        self._vocabulary = vocabulary
        self._context = context
        self._most_logits = max(1, _LOGITS // vocabulary)

    def score(self, rows: Sequence[ForcedTokens]) -> list[TokenScores]:
        """As `Backend.score`; out of memory goes on with fewer positions at a time.

        Raises:
            SpecError: a row cannot be read by this model.
            FloatingPointError: the model's logits are not finite.
            MemoryError: not even one position fits.
        """
        while True:
            scores = Scores(rows)
            try:
                self.read(rows, scores)
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
                traceback.clear_frames(error.__traceback__)
                self._take_less(error)
                continue
            return scores.of_rows

    def read(self, rows: Sequence[ForcedTokens], visit: Visit) -> None:
        """Show the raw logits before each given id to `visit`."""
        for row in rows:
            self._check(row)
        if self._reader is None:
            self._reader = self._make()
        self._reader.read(rows, self._most_logits, visit)

    def _check(self, row: ForcedTokens) -> None:
        require(len(row.prompt_ids) > 0, "prompt_ids", "hold an id to start from", [])
        length = len(row.prompt_ids) + len(row.token_ids)
        if self._context is not None and length > self._context:
            raise SpecError(
                f"{length} ids cannot be scored by a model of {self._context} positions: leave "
                "these rows out, or name a model with a longer context"
            )
        largest = max(*row.prompt_ids, *row.token_ids, 0)
        rule = f"have ids below {self._vocabulary}, the size of the model's embedding"
        require(largest < self._vocabulary, "a scored row", rule, largest)

    def _take_less(self, error: Exception) -> None:
        if self._most_logits == 1:
            raise MemoryError("out of memory while scoring one position at a time") from error
        self._most_logits = max(1, self._most_logits // 4)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        _LOG.warning("out of memory: scoring goes on %d positions at a time", self._most_logits)
