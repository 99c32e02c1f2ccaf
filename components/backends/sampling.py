"""What is measured of raw logits, and how the next token is drawn from them.

A token is the argmax of filtered logits plus the noise of `noise.py`.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from components.backends.noise import HIGHEST, LOWEST, field, gumbel, low, noise, row_words
from pipeline.spec import Sampling

_LOWEST = -200.0  # exp of it is 0 in float32
_NEAR = -7.0  # scaled logit above which most of what top_p keeps is looked for
_CELLS = 1 << 17  # logits looked at together on a CPU


@dataclass(frozen=True, slots=True)
class Settings:
    """Sampling parameters of a batch: one column [rows, 1] each, so that rows may differ."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    repetition_penalty: Tensor
    most: int  # largest top_k of any row
    random: bool  # some row has a temperature above 0
    nucleus: bool  # some row has top_p
    wide: bool  # some row has top_p without top_k
    penalises: bool  # some row has a repetition penalty

    @classmethod
    def of(cls, rows: Sequence[Sampling], device: torch.device) -> Self:
        """The settings of `rows`, in their order."""

        def column(values: Sequence[float]) -> Tensor:
            return torch.tensor(values, device=device).unsqueeze(1)

        greedy = [row.temperature == 0 for row in rows]
        return cls(
            temperature=column([float(row.temperature) for row in rows]),
            top_k=column([int(row.top_k) for row in rows]),
            top_p=column([float(row.top_p) for row in rows]),
            min_p=column([float(row.min_p) for row in rows]),
            repetition_penalty=column([float(row.repetition_penalty) for row in rows]),
            most=max(row.top_k for row in rows),
            random=not all(greedy),
            nucleus=any(row.top_p < 1 for row in rows),
            wide=any(row.top_p < 1 and row.top_k == 0 for row in rows),
            penalises=any(row.repetition_penalty != 1 for row in rows),
        )

    def select(self, rows: Tensor | slice) -> Self:
        """The settings of some rows."""
        columns = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        chosen = {name: getattr(self, name)[rows] for name in columns}
        return dataclasses.replace(self, **chosen)


def observe(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Entropy (nats) and log-sum-exp of raw float32 logits [rows, vocabulary], each [rows]."""
    parts = [_observed(some) for some in torch.split(logits, _step(logits))]
    entropies, totals = zip(*parts, strict=True)
    return torch.cat(entropies), torch.cat(totals)


def _observed(logits: Tensor) -> tuple[Tensor, Tensor]:
    largest = logits.amax(dim=-1, keepdim=True)
    shifted = (logits - largest).clamp_(min=_LOWEST)
    weights = shifted.exp()
    total = weights.sum(dim=-1)
    mean = weights.mul_(shifted).sum(dim=-1) / total
    return total.log() - mean, largest.squeeze(-1) + total.log()


def _step(logits: Tensor) -> int:
    """How many rows to look at together: on a CPU few enough to stay in its cache."""
    return max(1, _CELLS // logits.shape[-1] if logits.device.type == "cpu" else len(logits))


def draw(
    logits: Tensor,
    settings: Settings,
    seeds: Tensor,
    indices: Tensor,
    allowed: Tensor | None = None,
    seen: Tensor | None = None,
) -> Tensor:
    """Draw one id per row, int64 [rows].

    The same as `choose(filtered(...))`, without a sort, and with noise for few ids.

    Args:
        logits: raw float32 logits [rows, vocabulary]; left as they are.
        settings: the rows' sampling parameters.
        seeds: 64-bit seeds, int64 [rows].
        indices: index of the token to draw in its phase, int64 [rows].
        allowed: bool [vocabulary], False for ids that the tokenizer does not have.
        seen: bool [rows, vocabulary], True for ids of the prompt and of what was generated so far.
    """
    if not settings.random:
        return _first(_eligible(logits, settings, _barred(allowed), seen)).squeeze(-1)
    return _Race(logits, settings, _barred(allowed), seen).winners(seeds, indices)


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
    return _kept(_eligible(logits, settings, _barred(allowed), seen), settings)


def choose(logits: Tensor, seeds: Tensor, indices: Tensor) -> Tensor:
    """Draw one id per row, int64 [rows], from filtered logits [rows, vocabulary]."""
    ids = torch.arange(logits.shape[-1], device=logits.device)
    made = noise(seeds.unsqueeze(1), indices.unsqueeze(1), ids)
    return made.add_(logits).argmax(dim=-1)


class _Race:
    """Logits plus noise, where noise is made only for ids that may win.

    A row's largest logit passes every filter, so that a winner scores no less than it does, and
    filters let few ids through unless a row is flat. Of the ids left, the best is taken; where
    that fails top_p, all ids with logits no larger fail with it.
    """

    def __init__(
        self, logits: Tensor, settings: Settings, barred: Tensor | None, seen: Tensor | None
    ) -> None:
        self._logits, self._settings, self._barred, self._seen = logits, settings, barred, seen
        self._step = _step(logits)
        self._least = _least(settings, logits.shape[-1])
        # Memory that is taken once spares a CPU the faults of fresh pages.
        room = min(self._step, len(logits)), logits.shape[-1]
        self._floats = torch.empty(3, *room, device=logits.device)
        self._words = torch.empty(2, *room, dtype=torch.int32, device=logits.device)

    def winners(self, seeds: Tensor, indices: Tensor) -> Tensor:
        """The drawn ids, int64 [rows]."""
        settings = self._settings
        words = row_words(seeds.unsqueeze(1), indices.unsqueeze(1))
        ids, heads, total, whole = self._contenders(words)
        if settings.most:
            total, heads = _within_top_k(heads, total, whole, settings)
        heads.masked_fill_(heads < settings.min_p.log(), -torch.inf)
        first = heads.argmax(dim=-1, keepdim=True)
        scores = gumbel(field(words, low(ids))).add_(heads)
        best = scores.argmax(dim=-1, keepdim=True)
        while settings.nucleus:
            level = heads.gather(-1, best)
            larger = self._larger(heads, level, total, whole)
            fails = (larger >= settings.top_p * total) & (settings.top_p < 1)
            if not fails.any():
                break
            scores.masked_fill_(fails & (heads <= level), -torch.inf)
            best = scores.argmax(dim=-1, keepdim=True)
        best = torch.where(settings.temperature == 0, first, best)
        return ids.gather(-1, best).squeeze(-1)

    def _contenders(self, words: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Ids that may win, in order, and their scaled logits, padded with minus infinity.

        Also the mass of each row, and whether its contenders are all ids above some logit.
        """
        size = self._logits.shape[-1]
        numbers = low(torch.arange(size, device=self._logits.device))
        rows, ids, heads, totals, whole = [], [], [], [], []
        for start in range(0, len(self._logits), self._step):
            some = slice(start, start + self._step)
            settings = self._settings.select(some)
            scaled = self._scaled(some, settings)
            weights = torch.exp(scaled, out=self._floats[1, : len(scaled)])
            total = weights.sum(dim=-1, keepdim=True)
            least = self._lower(self._least[some], settings, scaled, weights, total)
            mask = _at_least(scaled, least)
            many = int(mask.count_nonzero()) * 32 > mask.numel()
            if many:
                if settings.most:
                    by_k = _top_k(scaled, settings)
                    least = torch.maximum(least, by_k)
                    total = weights.masked_fill(scaled < by_k, 0.0).sum(dim=-1, keepdim=True)
                mask = self._lucky(scaled, weights, (words[0][some], words[1][some]), numbers)
                mask &= _at_least(scaled, least)
            found = _places(mask)
            heads.append(scaled.flatten()[found])
            rows.append(found.div(size, rounding_mode="floor").add_(start))
            ids.append(found.remainder_(size))
            totals.append(total)
            whole.append(torch.full_like(total, not many, dtype=torch.bool))
        row = torch.cat(rows)
        counts = row.bincount(minlength=len(self._logits))
        place = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
        shape = len(self._logits), max(1, int(counts.max()))
        padded = row.new_zeros(shape).index_put_((row, place), torch.cat(ids))
        values = torch.cat(heads)
        spread = values.new_full(shape, -torch.inf).index_put_((row, place), values)
        return padded, spread, torch.cat(totals), torch.cat(whole)

    def _scaled(self, some: slice, settings: Settings) -> Tensor:
        seen = None if self._seen is None else self._seen[some]
        logits = _eligible(self._logits[some], settings, self._barred, seen)
        largest = logits.amax(dim=-1, keepdim=True)
        return _scaled(logits, largest, settings, self._floats[0, : len(logits)])

    def _lower(
        self, least: Tensor, settings: Settings, scaled: Tensor, weights: Tensor, total: Tensor
    ) -> Tensor:
        """A scaled logit [rows, 1] below which no id wins, told from the logits too."""
        if settings.most:
            least = torch.maximum(least, _near_top_k(scaled, settings))
        if settings.wide:
            near = torch.full_like(least, _NEAR)
            above = self._floats[2, : len(scaled)].copy_(_at_least(scaled, near)).mul_(weights)
            rest = total - above.sum(dim=-1, keepdim=True)
            enough = (rest < (1 - settings.top_p) * total * 0.9) & (settings.top_k == 0)
            least = torch.where(enough, torch.maximum(least, near), least)
        return least

    def _lucky(
        self, scaled: Tensor, weights: Tensor, words: tuple[Tensor, Tensor], numbers: Tensor
    ) -> Tensor:
        """Where a score may reach that of the largest logit; `weights` are spent."""
        made = field(words, numbers, self._words[:, : len(scaled)])
        # A score is no less if v <= -log(1-v) <= weight * (-log(1-v) of the largest).
        limit = gumbel(made.gather(-1, _first(scaled))).neg_().exp_().mul_(1.01 * 2.0**31)
        made.bitwise_right_shift_(1).bitwise_and_((1 << 31) - 1)
        halves = self._floats[2, : len(scaled)].copy_(made)
        return _at_least(weights.mul_(limit).add_(1.0), halves)

    def _larger(self, heads: Tensor, level: Tensor, total: Tensor, whole: Tensor) -> Tensor:
        """The mass [rows, 1] of scaled logits above `level`."""
        larger = heads.exp().mul_(heads > level).sum(dim=-1, keepdim=True)
        certain = level.exp() > (1 - self._settings.top_p) * total * 1.0001
        unsure = ~(whole | certain)
        for start in range(0, len(larger), self._step):
            some = slice(start, start + self._step)
            if unsure[some].any():
                scaled = self._scaled(some, self._settings.select(some))
                mass = scaled.exp().mul_(scaled > level[some]).sum(dim=-1, keepdim=True)
                larger[some] = torch.where(unsure[some], mass, larger[some])
        return larger


def _least(settings: Settings, size: int) -> Tensor:
    """A scaled logit [rows, 1] below which an id cannot win, whatever the logits."""
    least = torch.full_like(settings.top_p, LOWEST - HIGHEST)
    least = torch.maximum(least, settings.min_p.log())
    # All ids below this hold together less than what top_p leaves out.
    rest = (1 - settings.top_p).div_(size).log_().sub_(1)
    least = torch.where(settings.top_p < 1, torch.maximum(least, rest), least)
    return least.masked_fill_(settings.top_k > 0, -torch.inf)  # top_k's mass needs all its ids


def _top_k(scaled: Tensor, settings: Settings) -> Tensor:
    """The smallest scaled logit [rows, 1] that passes top_k."""
    heads = scaled.topk(min(settings.most, scaled.shape[-1]), dim=-1).values
    by_k = heads.gather(-1, settings.top_k.clamp(min=1, max=heads.shape[-1]) - 1)
    return by_k.masked_fill_(settings.top_k == 0, -torch.inf)


def _near_top_k(scaled: Tensor, settings: Settings) -> Tensor:
    """A scaled logit [rows, 1] that top_k logits reach, and few more: as many blocks do."""
    blocks = scaled.shape[-1] // 64
    if settings.most * 2 > blocks:
        return _top_k(scaled, settings)
    return _top_k(scaled[:, : blocks * 64].reshape(-1, blocks, 64).amax(dim=-1), settings)


def _within_top_k(
    heads: Tensor, total: Tensor, whole: Tensor, settings: Settings
) -> tuple[Tensor, Tensor]:
    """The mass of top_k, and `heads` without those that it leaves out."""
    limited = whole & (settings.top_k > 0)
    fails = limited & (heads < _top_k(heads, settings))
    heads = heads.masked_fill(fails, -torch.inf)
    return torch.where(limited, heads.exp().sum(dim=-1, keepdim=True), total), heads


# On a CPU, NumPy compares and searches ten times as fast as PyTorch.


def _first(values: Tensor) -> Tensor:
    """Where each row's largest value stands first, [rows, 1]."""
    if values.device.type != "cpu":
        return values.argmax(dim=-1, keepdim=True)
    return torch.from_numpy(values.numpy().argmax(axis=-1, keepdims=True))


def _at_least(values: Tensor, least: Tensor) -> Tensor:
    if values.device.type != "cpu":
        return values >= least
    return torch.from_numpy(values.numpy() >= least.numpy())


def _places(mask: Tensor) -> Tensor:
    """Where a mask holds, counted through its rows."""
    if mask.device.type != "cpu":
        return mask.flatten().nonzero().squeeze(-1)
    return torch.from_numpy(np.flatnonzero(mask.numpy()))


def _eligible(
    logits: Tensor, settings: Settings, barred: Tensor | None, seen: Tensor | None
) -> Tensor:
    """Logits after the repetition penalty, minus infinity for ids that do not exist."""
    if settings.penalises and seen is not None:
        penalty = settings.repetition_penalty
        penalised = torch.where(logits < 0, logits * penalty, logits / penalty)
        logits = torch.where(seen, penalised, logits)
    return logits if barred is None else logits + barred


def _barred(allowed: Tensor | None) -> Tensor | None:
    """0 for ids that may be drawn, minus infinity for others."""
    if allowed is None:
        return None
    return torch.zeros(allowed.shape, device=allowed.device).masked_fill_(~allowed, -torch.inf)


def _scaled(
    logits: Tensor, largest: Tensor, settings: Settings, room: Tensor | None = None
) -> Tensor:
    """Logits over temperature, the largest moved to 0; temperature 0 leaves only the largest."""
    tiny = torch.finfo(torch.float32).tiny
    return torch.sub(logits, largest, out=room).div_(settings.temperature.clamp(min=tiny))


def _kept(logits: Tensor, settings: Settings) -> Tensor:
    scaled = _scaled(logits, logits.amax(dim=-1, keepdim=True), settings)
    return scaled.masked_fill_(scaled < _cutoff(scaled, settings), -torch.inf)


def _cutoff(scaled: Tensor, settings: Settings) -> Tensor:
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
