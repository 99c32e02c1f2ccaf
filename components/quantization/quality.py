"""How far a model's next-token distributions are from those of the full-precision model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from components.decoding.forced_rows import measured
from pipeline.protocols import ForcedTokens


class KeptLogits:
    """A `Visit` that keeps the full-precision model's logits in a file, one line per given id."""

    def __init__(self, path: Path, rows: Sequence[ForcedTokens]) -> None:
        """`path` will have 4 bytes for each id of the vocabulary, for each given id of `rows`."""
        counts = [len(row.token_ids) for row in rows]
        self._starts = [sum(counts[:number]) for number in range(len(counts))]
        self._path, self._count = path, sum(counts)
        self._table: Tensor | None = None

    def __call__(self, row: int, index: int, logits: Tensor) -> None:
        """Keep raw logits [count, vocabulary] from id `index` of a row on."""
        if self._table is None:
            shape = (self._count, logits.shape[-1])
            size, kind = shape[0] * shape[1], torch.float32
            table = torch.from_file(str(self._path), shared=True, size=size, dtype=kind)
            self._table = table.view(shape)
        self.of(row, index, len(logits)).copy_(logits)

    def of(self, row: int, index: int, count: int) -> Tensor:
        """The logits [count, vocabulary] that are kept there."""
        assert self._table is not None, "nothing is kept yet"
        start = self._starts[row] + index
        return self._table[start : start + count]


@dataclass(frozen=True, slots=True)
class Quality:
    """Means over `positions` of a text.

    `kl` is the Kullback-Leibler divergence from the full-precision model in nats, `top1` the share
    of positions at which both hold the same token for the likeliest. Entropies are in nats.
    """

    positions: int
    kl: float
    kl_95: float  # below which 95 % of positions are
    top1: float
    perplexity: float
    entropy: float
    entropy_shift: float  # of the mean, from the full-precision model's


class Compared:
    """A `Visit` that compares logits with those that were kept."""

    def __init__(self, kept: KeptLogits, rows: Sequence[ForcedTokens]) -> None:
        """`rows` are those that are read, for both models."""
        self._kept, self._rows = kept, rows
        self._parts: list[Tensor] = []

    def __call__(self, row: int, index: int, logits: Tensor) -> None:
        """Compare raw logits [count, vocabulary] from id `index` of a row on."""
        full = self._kept.of(row, index, len(logits)).to(logits.device)
        given = self._rows[row].token_ids[index : index + len(logits)]
        entropies, logprobs = measured(logits, given)
        before, _ = measured(full, given)
        same = logits.float().argmax(-1) == full.argmax(-1)
        columns = (divergence(full, logits.float()), same, logprobs, entropies, before)
        self._parts.append(torch.stack([column.double().cpu() for column in columns]))

    def quality(self) -> Quality:
        """What was compared so far, in numbers."""
        kl, same, logprobs, entropies, before = torch.cat(self._parts, dim=1)
        entropy = float(entropies.mean())
        return Quality(
            positions=len(kl),
            kl=float(kl.mean()),
            kl_95=float(kl.quantile(0.95)),
            top1=float(same.mean()),
            perplexity=math.exp(-float(logprobs.mean())),
            entropy=entropy,
            entropy_shift=entropy - float(before.mean()),
        )


def divergence(full: Tensor, other: Tensor) -> Tensor:
    """KL(full || other) in nats of float32 logits [count, vocabulary]: [count], 0 or more."""
    expected = full.log_softmax(-1)
    difference = expected - other.log_softmax(-1)
    return (expected.exp() * difference).sum(-1).clamp_(min=0)


def windows(ids: Sequence[int], length: int, most: int) -> list[ForcedTokens]:
    """Rows of `length` ids of a text, of whose ids all but the first are scored.

    At most `most` ids of the text are used; a last row of one id is left out.
    """
    used = list(ids[:most])
    parts = [used[start : start + length] for start in range(0, len(used), length)]
    return [ForcedTokens(part[:1], part[1:]) for part in parts if len(part) > 1]
