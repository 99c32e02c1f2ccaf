"""Scores of given ids: what a decoder would have measured, had it drawn them."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from components.decoding.sampling import entropy_and_logsumexp, not_finite
from pipeline.protocols import ForcedTokens, TokenScores

# visit(row, index, logits): raw logits [count, vocabulary] that predict the row's given ids
# from `index` on. They come in order within a row, of any floating type, and are not kept.
Visit = Callable[[int, int, Tensor], None]


class ForcedRows(Protocol):
    """Reads given rows through a model."""

    def read(self, rows: Sequence[ForcedTokens], most_logits: int, visit: Visit) -> None:
        """Read every row once and show the logits before each of its given ids.

        Args:
            rows: of any lengths; a row does not depend on the others.
            most_logits: positions whose logits may be in memory together.
            visit: called with logits of one row at a time.
        """


class Scores:
    """A `Visit` that keeps one entropy and one logprob per given id."""

    def __init__(self, rows: Sequence[ForcedTokens]) -> None:
        """`rows` are those that are read."""
        self._rows = rows
        self.of_rows = [TokenScores([], []) for _ in rows]

    def __call__(self, row: int, index: int, logits: Tensor) -> None:
        """Measure logits [count, vocabulary] as the decoder does.

        Raises:
            FloatingPointError: they are not finite.
        """
        given = self._rows[row].token_ids[index : index + len(logits)]
        entropies, logprobs = measured(logits, given)
        self.of_rows[row].entropies.extend(entropies.tolist())
        self.of_rows[row].logprobs.extend(logprobs.tolist())


def measured(logits: Tensor, token_ids: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Entropies (nats) of raw logits [count, vocabulary], and the logprobs of ids: [count] each.

    Raises:
        FloatingPointError: the logits are not finite.
    """
    logits = logits.float()
    entropies, totals = entropy_and_logsumexp(logits)
    ids = torch.tensor(list(token_ids), device=logits.device)
    logprobs = logits.gather(-1, ids.unsqueeze(-1)).squeeze(-1) - totals
    if not bool(torch.stack((entropies, logprobs)).isfinite().all()):
        raise not_finite()
    return entropies, logprobs
