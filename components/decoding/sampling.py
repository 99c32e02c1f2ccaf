"""What is measured of raw logits, and how the next token is drawn from them.

A token is the argmax of filtered logits plus the noise of `noise.py`, `choose(filtered(...))`;
`fast_draw.py` computes it faster.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from components.decoding.noise import noise
from pipeline.spec import Sampling

_LOWEST = -200.0  # exp of it is 0 in float32
_CHUNK_LOGITS = 1 << 17  # per CPU thread: they stay in its cache


@dataclass(frozen=True, slots=True)
class SamplingTensors:
    """Sampling parameters of a batch: one column [rows, 1] each, so that rows may differ."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    repetition_penalty: Tensor
    max_top_k: int  # largest top_k of any row
    random: bool  # some row has a temperature above 0
    uses_top_p: bool  # some row has top_p
    top_p_alone: bool  # some row has top_p without top_k
    penalises: bool  # some row has a repetition penalty

    @classmethod
    def of(cls, rows: Sequence[Sampling], device: torch.device) -> Self:
        """The parameters of `rows`, in their order."""

        def column(values: Sequence[float]) -> Tensor:
            return torch.tensor(values, device=device).unsqueeze(1)

        greedy = [row.temperature == 0 for row in rows]
        return cls(
            temperature=column([float(row.temperature) for row in rows]),
            top_k=column([int(row.top_k) for row in rows]),
            top_p=column([float(row.top_p) for row in rows]),
            min_p=column([float(row.min_p) for row in rows]),
            repetition_penalty=column([float(row.repetition_penalty) for row in rows]),
            max_top_k=max(row.top_k for row in rows),
            random=not all(greedy),
            uses_top_p=any(row.top_p < 1 for row in rows),
            top_p_alone=any(row.top_p < 1 and row.top_k == 0 for row in rows),
            penalises=any(row.repetition_penalty != 1 for row in rows),
        )

    def select(self, rows: Tensor | slice) -> Self:
        """The parameters of some rows."""
        columns = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        chosen = {name: getattr(self, name)[rows] for name in columns}
        return dataclasses.replace(self, **chosen)


def entropy_and_logsumexp(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Entropy (nats) and log-sum-exp of raw float32 logits [rows, vocabulary], each [rows]."""
    parts = [_entropy_and_logsumexp(chunk) for chunk in torch.split(logits, rows_per_chunk(logits))]
    entropies, totals = zip(*parts, strict=True)
    return torch.cat(entropies), torch.cat(totals)


def _entropy_and_logsumexp(logits: Tensor) -> tuple[Tensor, Tensor]:
    largest = logits.amax(dim=-1, keepdim=True)
    shifted = logits - largest
    entropy, total = shifted_entropy_and_logsumexp(shifted, torch.empty_like(shifted))
    return entropy, largest.squeeze(-1) + total


def shifted_entropy_and_logsumexp(shifted: Tensor, buffer: Tensor) -> tuple[Tensor, Tensor]:
    """Entropy and log-sum-exp of logits whose largest is 0; overwrites `buffer`."""
    weights = torch.exp(shifted, out=buffer)
    total = weights.sum(dim=-1)
    mean = weights.mul_(shifted).sum(dim=-1)
    if bool(mean.isnan().any()):  # 0 times minus infinity
        shifted = shifted.clamp(min=_LOWEST)
        mean = torch.exp(shifted, out=buffer).mul_(shifted).sum(dim=-1)
    log = total.log()
    return log - mean / total, log


def rows_per_chunk(logits: Tensor) -> int:
    """Rows to process together: on a CPU few enough to stay in its cache."""
    if logits.device.type != "cpu":
        return max(1, len(logits))
    return max(1, _CHUNK_LOGITS * torch.get_num_threads() // logits.shape[-1])


def filtered(
    logits: Tensor,
    settings: SamplingTensors,
    allowed: Tensor | None = None,
    seen: Tensor | None = None,
) -> Tensor:
    """Logits over temperature, minus infinity where a token may not be drawn.

    The order is Transformers': repetition penalty, temperature, top_k, top_p, min_p. A token passes
    top_k if fewer than k logits are strictly larger, and top_p if those that are strictly larger
    hold less than top_p of the mass that top_k left, so ties stay together. A row of temperature 0
    keeps its largest logits only. Arguments are as of `fast_draw.draw`.
    """
    return _masked(eligible(logits, settings, barred_by(allowed), seen), settings)


def choose(logits: Tensor, seeds: Tensor, indices: Tensor) -> Tensor:
    """Draw one id per row, int64 [rows], from filtered logits [rows, vocabulary]."""
    ids = torch.arange(logits.shape[-1], device=logits.device)
    noisy = noise(seeds.unsqueeze(1), indices.unsqueeze(1), ids)
    return noisy.add_(logits).argmax(dim=-1)


def eligible(
    logits: Tensor, settings: SamplingTensors, barred: Tensor | None, seen: Tensor | None
) -> Tensor:
    """Logits after the repetition penalty, minus infinity for ids that do not exist."""
    if settings.penalises and seen is not None:
        penalty = settings.repetition_penalty
        penalised = torch.where(logits < 0, logits * penalty, logits / penalty)
        logits = torch.where(seen, penalised, logits)
    return logits if barred is None else logits + barred


def not_finite() -> FloatingPointError:
    """The error of a row whose raw logits are not finite."""
    return FloatingPointError(
        "the model's logits are not finite: choose another quantization (float16 overflows in some "
        "models)"
    )


def barred_by(allowed: Tensor | None) -> Tensor | None:
    """0 for ids that may be drawn, minus infinity for others."""
    if allowed is None:
        return None
    return torch.zeros(allowed.shape, device=allowed.device).masked_fill_(~allowed, -torch.inf)


def over_temperature(shifted: Tensor, settings: SamplingTensors) -> Tensor:
    """Divide logits, of which the largest is 0, by temperature, in place.

    Temperature 0 leaves only the largest.
    """
    tiny = torch.finfo(torch.float32).tiny
    return shifted.div_(settings.temperature.clamp(min=tiny))


def _masked(logits: Tensor, settings: SamplingTensors) -> Tensor:
    scaled = over_temperature(logits - logits.amax(dim=-1, keepdim=True), settings)
    return scaled.masked_fill_(scaled < _cutoff(scaled, settings), -torch.inf)


def _cutoff(scaled: Tensor, settings: SamplingTensors) -> Tensor:
    """The smallest logit [rows, 1] that passes top_k, top_p and min_p."""
    head = scaled.sort(dim=-1, descending=True).values
    by_k = head.gather(-1, settings.top_k.clamp(min=1, max=head.shape[-1]) - 1)
    by_k = by_k.masked_fill(settings.top_k == 0, -torch.inf)
    total = scaled.exp().masked_fill_(scaled < by_k, 0.0).sum(dim=-1, keepdim=True)
    mass = head.exp().div_(total)
    larger = mass.cumsum(dim=-1).sub_(mass)
    count = ((larger < settings.top_p) & (head >= by_k)).sum(dim=-1, keepdim=True)
    by_p = head.gather(-1, count.clamp(min=1) - 1)
    by_p = by_p.masked_fill(settings.top_p >= 1, -torch.inf)
    cutoff = torch.maximum(torch.maximum(by_k, by_p), settings.min_p.log())
    return cutoff.masked_fill(settings.temperature == 0, 0.0)
