"""What is measured of raw logits, and how the next token is drawn from them.

The noise is a fixed field: one number for every (row seed, index of the token in its phase,
vocabulary id), made by integer arithmetic on 32-bit words. A token is the argmax of filtered logits
plus noise, so it does not depend on which rows share a batch, and any other program that computes
the same field draws the same token. The field, with words unsigned and wrapping at 32 bits:

    mix(x):  x ^= x >> 16;  x *= 0x7feb352d;  x ^= x >> 15;  x *= 0x846ca68b;  x ^= x >> 16
    a = mix(low word of the seed ^ mix(index))
    b = mix(high word of the seed ^ mix(a + 0x9e3779b9))
    h = mix(mix(id ^ a) ^ b)
    v = min((h >> 8) * 2^-24 + ((h & 255) + 0.5) * 2^-32, 1 - 2^-24)    float32, rounded once
    e = v + v * v / 2 if v < 2^-10 else -log(1 - v)
    noise = -log(e)                                                     within [-2.82, 22.88]

Values of v near 1 are coarse, but the small ones, by which an unlikely token wins, are told apart
down to 2^-33.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from pipeline.spec import Sampling

_LOWEST = -200.0  # exp of it is 0 in float32
_HEAD = 256  # largest logits looked at before a row is sorted in full
_GOLDEN = 0x9E3779B9 - (1 << 32)


@dataclass(frozen=True, slots=True)
class Settings:
    """Sampling parameters of a batch: one column [rows, 1] each, so that rows may differ."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    repetition_penalty: Tensor
    most: int  # largest top_k of any row
    greedy: bool  # some row has temperature 0
    random: bool  # some row has another temperature
    narrow: bool  # every row has temperature 0, top_k or top_p, so that few tokens can be drawn
    cuts: bool  # some row has top_k or top_p
    penalises: bool  # some row has a repetition penalty

    @classmethod
    def of(cls, rows: Sequence[Sampling], device: torch.device) -> Self:
        """The settings of `rows`, in their order."""

        def column(values: Sequence[float]) -> Tensor:
            return torch.tensor(values, device=device).unsqueeze(1)

        greedy = [row.temperature == 0 for row in rows]
        cut = [row.top_k > 0 or row.top_p < 1 for row in rows]
        return cls(
            temperature=column([float(row.temperature) for row in rows]),
            top_k=column([int(row.top_k) for row in rows]),
            top_p=column([float(row.top_p) for row in rows]),
            min_p=column([float(row.min_p) for row in rows]),
            repetition_penalty=column([float(row.repetition_penalty) for row in rows]),
            most=max(row.top_k for row in rows),
            greedy=any(greedy),
            random=not all(greedy),
            narrow=all(either or other for either, other in zip(greedy, cut, strict=True)),
            cuts=any(cut),
            penalises=any(row.repetition_penalty != 1 for row in rows),
        )

    def select(self, rows: Tensor) -> Self:
        """The settings of some rows, given by index."""
        columns = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        chosen = {name: getattr(self, name)[rows] for name in columns}
        return dataclasses.replace(self, **chosen)


def observe(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Entropy (nats) and log-sum-exp of raw float32 logits [rows, vocabulary], each [rows]."""
    largest = logits.amax(dim=-1, keepdim=True)
    shifted = (logits - largest).clamp_(min=_LOWEST)
    weights = shifted.exp()
    total = weights.sum(dim=-1)
    mean = weights.mul_(shifted).sum(dim=-1) / total
    return total.log() - mean, largest.squeeze(-1) + total.log()


def draw(
    logits: Tensor,
    settings: Settings,
    seeds: Tensor,
    indices: Tensor,
    allowed: Tensor | None = None,
    seen: Tensor | None = None,
) -> Tensor:
    """Draw one id per row, int64 [rows].

    The same as `choose(filtered(...))`, with less work where few tokens can be drawn.

    Args:
        logits: raw float32 logits [rows, vocabulary]; left as they are.
        settings: the rows' sampling parameters.
        seeds: 64-bit seeds, int64 [rows].
        indices: index of the token to draw in its phase, int64 [rows].
        allowed: bool [vocabulary], False for ids that the tokenizer does not have.
        seen: bool [rows, vocabulary], True for ids of the prompt and of what was generated so far.
    """
    logits = _eligible(logits, settings, allowed, seen)
    if not settings.random:
        return logits.argmax(dim=-1)
    drawn = (_draw_narrow if settings.narrow else _draw_wide)(logits, settings, seeds, indices)
    if settings.greedy:
        return torch.where(settings.temperature.squeeze(1) == 0, logits.argmax(dim=-1), drawn)
    return drawn


def filtered(
    logits: Tensor,
    settings: Settings,
    allowed: Tensor | None = None,
    seen: Tensor | None = None,
) -> Tensor:
    """Scaled logits of what is drawn from: minus infinity where a token may not be drawn.

    The order is Transformers': repetition penalty, temperature, top_k, top_p, min_p. A token passes
    top_k if fewer than k logits are strictly larger, and top_p if those that are strictly larger
    hold less than top_p of the mass that top_k left; so ties stay together. A row of temperature 0
    keeps its largest logits only. Arguments as of `draw`.
    """
    return _kept(_eligible(logits, settings, allowed, seen), settings)


def choose(logits: Tensor, seeds: Tensor, indices: Tensor) -> Tensor:
    """Draw one id per row, int64 [rows], from filtered logits [rows, vocabulary]."""
    ids = torch.arange(logits.shape[-1], device=logits.device)
    field = noise(seeds.unsqueeze(1), indices.unsqueeze(1), ids)
    return field.add_(logits).argmax(dim=-1)


def _draw_wide(logits: Tensor, settings: Settings, seeds: Tensor, indices: Tensor) -> Tensor:
    return choose(_kept(logits, settings), seeds, indices)


def _draw_narrow(logits: Tensor, settings: Settings, seeds: Tensor, indices: Tensor) -> Tensor:
    """Draw among a row's largest logits; rows that could draw any other are drawn in full."""
    head, ids = logits.topk(min(logits.shape[-1], max(_HEAD, settings.most)), dim=-1)
    scaled = _scaled(logits, head[:, :1], settings)
    head = _scaled(head, head[:, :1], settings)
    cutoff = _cutoff(scaled, head, settings)
    raced = noise(seeds.unsqueeze(1), indices.unsqueeze(1), ids).add_(head)
    raced.masked_fill_(head < cutoff, -torch.inf)
    drawn = ids.gather(-1, raced.argmax(dim=-1, keepdim=True)).squeeze(-1)
    if head.shape[-1] < logits.shape[-1]:
        wide = (head[:, -1:] >= cutoff).squeeze(-1).nonzero().squeeze(-1)
        if len(wide):
            some = settings.select(wide)
            drawn[wide] = _draw_wide(logits[wide], some, seeds[wide], indices[wide])
    return drawn


def noise(seeds: Tensor, indices: Tensor, ids: Tensor) -> Tensor:
    """The noise field, float32. `seeds`, `indices` and `ids` are int64 and broadcast."""
    first = _mix(_low(seeds) ^ _mix(_low(indices)))
    second = _mix(_low(seeds >> 32) ^ _mix(first + _GOLDEN))
    return _gumbel(_mix(_mix(_low(ids) ^ first) ^ second))


def _eligible(
    logits: Tensor, settings: Settings, allowed: Tensor | None, seen: Tensor | None
) -> Tensor:
    """Logits after the repetition penalty, minus infinity for ids that do not exist."""
    if settings.penalises and seen is not None:
        penalty = settings.repetition_penalty
        penalised = torch.where(logits < 0, logits * penalty, logits / penalty)
        logits = torch.where(seen, penalised, logits)
    if allowed is not None:
        logits = logits.masked_fill(~allowed, -torch.inf)
    return logits


def _scaled(logits: Tensor, largest: Tensor, settings: Settings) -> Tensor:
    """Logits over temperature, the largest moved to 0; temperature 0 leaves only the largest."""
    tiny = torch.finfo(torch.float32).tiny
    return (logits - largest).div_(settings.temperature.clamp(min=tiny))


def _kept(logits: Tensor, settings: Settings) -> Tensor:
    scaled = _scaled(logits, logits.amax(dim=-1, keepdim=True), settings)
    head = scaled.sort(dim=-1, descending=True).values if settings.cuts else scaled[:, :1]
    return scaled.masked_fill_(scaled < _cutoff(scaled, head, settings), -torch.inf)


def _cutoff(scaled: Tensor, head: Tensor, settings: Settings) -> Tensor:
    """The smallest logit [rows, 1] that passes top_k, top_p and min_p.

    Told from `head`, a row's largest logits in order. It is right where the last of `head` lies
    below it, or `head` holds all.
    """
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


def _low(value: Tensor) -> Tensor:
    """The low 32 bits of int64 as int32."""
    # Moved to the top and back first, so that the conversion cannot overflow.
    return ((value << 32) >> 32).to(torch.int32)


def _mix(word: Tensor) -> Tensor:
    """A bijection of 32-bit words that spreads every bit, in place; products wrap."""
    for bits, factor in ((16, 0x7FEB352D), (15, 0x846CA68B - (1 << 32)), (16, 1)):
        shifted = word >> bits
        word ^= shifted.bitwise_and_((1 << (32 - bits)) - 1)  # the shift carried the sign in
        if factor != 1:
            word *= factor
    return word


def _gumbel(word: Tensor) -> Tensor:
    """Gumbel noise from random words: -log of an exponential variate."""
    uniform = (word & 255).float().add_(0.5).mul_(2.0**-32)
    uniform += (word >> 8).bitwise_and_((1 << 24) - 1).float().mul_(2.0**-24)
    uniform.clamp_(max=1 - 2.0**-24)
    series = (uniform * uniform).mul_(0.5).add_(uniform)
    exact = (1 - uniform).log_().neg_()
    return torch.where(uniform < 2.0**-10, series, exact).log_().neg_()
