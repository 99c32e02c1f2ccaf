"""The draw of tokens as it is computed: with noise for few ids, without a sort."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from components.decoding.noise import HIGHEST, LOWEST, field, gumbel, low, row_words
from components.decoding.sampling import (
    Settings,
    barred_by,
    eligible,
    observe,
    over_temperature,
    rows_at_once,
    spread,
)

_NEAR = (-7.0, -10.0)  # scaled logits above which what top_p keeps is looked for


@dataclass(frozen=True, slots=True)
class Sampled:
    """Drawn ids, int64 [rows], and what raw logits say of them, float32 [rows] each."""

    tokens: Tensor
    entropies: Tensor
    logprobs: Tensor


def sample(
    logits: Tensor,
    settings: Settings,
    seeds: Tensor,
    indices: Tensor,
    allowed: Tensor | None = None,
    seen: Tensor | None = None,
) -> Sampled:
    """What `draw` draws and `observe` measures, with the logits read once on a CPU.

    Arguments are as of `draw`; logits of any type.
    """
    barred = barred_by(allowed)
    if not settings.random or logits.device.type != "cpu":
        logits = logits.float()
        tokens = draw(logits, settings, seeds, indices, allowed, seen)
        entropies, totals = observe(logits)
    else:
        race = _Race(logits, settings, barred, seen, observes=True)
        tokens = race.winners(seeds, indices)
        entropies, totals = (torch.cat(parts) for parts in zip(*race.observed, strict=True))
    chosen = logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    return Sampled(tokens, entropies, chosen.float() - totals)


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
        return _first(eligible(logits, settings, barred_by(allowed), seen)).squeeze(-1)
    return _Race(logits, settings, barred_by(allowed), seen).winners(seeds, indices)


class _Race:
    """Logits plus noise, where noise is made only for ids that may win.

    A row's largest logit passes every filter, so that a winner scores no less than it does, and
    filters let few ids through unless a row is flat. Of the ids left, the best is taken; where
    that fails top_p, all ids with logits no larger fail with it.
    """

    def __init__(
        self,
        logits: Tensor,
        settings: Settings,
        barred: Tensor | None,
        seen: Tensor | None,
        observes: bool = False,
    ) -> None:
        self._logits, self._settings, self._barred, self._seen = logits, settings, barred, seen
        self._raw = barred is None and not settings.penalises  # nothing is done to logits
        self._step = rows_at_once(logits)
        self._least = _least(settings, logits.shape[-1])
        self._observes = observes
        self.observed: list[tuple[Tensor, Tensor]] = []  # entropies and log-sum-exps of some rows
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
        rows, ids, heads, totals, whole = [], [], [], [], []
        for start in range(0, len(self._logits), self._step):
            some = slice(start, start + self._step)
            settings = self._settings.select(some)
            scaled = self._scaled(some, settings, self._observes)
            weights = torch.exp(scaled, out=self._floats[1, : len(scaled)])
            total = weights.sum(dim=-1, keepdim=True)
            found = _near(scaled, weights, total, settings)
            many = False
            if found is None:
                at = words[0][some], words[1][some]
                found, total, many = self._search(some, settings, scaled, weights, total, at)
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

    def _search(
        self,
        some: slice,
        settings: Settings,
        scaled: Tensor,
        weights: Tensor,
        total: Tensor,
        words: tuple[Tensor, Tensor],
    ) -> tuple[Tensor, Tensor, bool]:
        """Places of ids that may win, each row's mass, and whether the noise had to tell."""
        least = self._least[some]
        if settings.most:
            least = torch.maximum(least, _near_top_k(scaled, settings))
        mask = _at_least(scaled, least)
        many = int(mask.count_nonzero()) * 32 > mask.numel()
        if many:
            if settings.most:
                by_k = _top_k(scaled, settings)
                least = torch.maximum(least, by_k)
                total = weights.masked_fill(scaled < by_k, 0.0).sum(dim=-1, keepdim=True)
            mask = self._lucky(scaled, weights, words)
            mask &= _at_least(scaled, least)
        return _places(mask), total, many

    def _scaled(self, some: slice, settings: Settings, observes: bool = False) -> Tensor:
        logits = self._logits[some].float()
        room = self._floats[0, : len(logits)]
        if observes and not self._raw:
            self.observed.append(observe(logits))
        seen = None if self._seen is None else self._seen[some]
        logits = eligible(logits, settings, self._barred, seen)
        largest = logits.amax(dim=-1, keepdim=True)
        shifted = torch.sub(logits, largest, out=room)
        if observes and self._raw:
            entropy, total = spread(shifted, self._floats[1, : len(logits)])
            self.observed.append((entropy, largest.squeeze(-1) + total))
        return over_temperature(shifted, settings)

    def _lucky(self, scaled: Tensor, weights: Tensor, words: tuple[Tensor, Tensor]) -> Tensor:
        """Where a score may reach that of the largest logit; `weights` are spent."""
        numbers = low(torch.arange(scaled.shape[-1], device=scaled.device))
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


def _near(scaled: Tensor, weights: Tensor, total: Tensor, settings: Settings) -> Tensor | None:
    """Places of ids near the largest that hold all that top_p keeps; None if they are not few."""
    if scaled.device.type != "cpu" or not settings.wide:
        return None
    size = scaled.shape[-1]
    spared = total * (1 - settings.top_p) * 0.9
    spared.masked_fill_(settings.top_k > 0, 0.0)
    for least in _NEAR:
        found = np.flatnonzero(scaled.numpy() >= np.float32(least))
        held = np.bincount(found // size, weights.numpy().ravel()[found], len(scaled))
        if bool((total - torch.from_numpy(held).unsqueeze(1) < spared).all()):
            return torch.from_numpy(found)
    return None


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
