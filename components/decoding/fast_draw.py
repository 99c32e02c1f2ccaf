"""Gumbel-max sampling as it is computed: without a sort, and with noise for few ids only."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from components.decoding.noise import MAX_NOISE, MIN_NOISE, field, gumbel, low_word, row_words
from components.decoding.sampling import (
    SamplingTensors,
    barred_by,
    eligible,
    entropy_and_logsumexp,
    over_temperature,
    rows_per_chunk,
    shifted_entropy_and_logsumexp,
)

_NEAR_LARGEST = (-7.0, -10.0)  # scaled logits above which top_p's ids are looked for first


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """Drawn ids, int64 [rows]; entropies (nats) and logprobs of raw logits, float32 [rows] each."""

    tokens: Tensor
    entropies: Tensor
    logprobs: Tensor


def sample(
    logits: Tensor,
    settings: SamplingTensors,
    seeds: Tensor,
    indices: Tensor,
    allowed: Tensor | None = None,
    seen: Tensor | None = None,
    changed: Tensor | None = None,
) -> SampledTokens:
    """Draw as `draw` does, and measure the logits; a CPU reads them once for both.

    Arguments are as of `draw`; logits may have any floating type. With `changed`, float32, ids are
    drawn from it, while `logits` are still what is measured.
    """
    barred = barred_by(allowed)
    if changed is not None or not settings.random or logits.device.type != "cpu":
        logits = logits.float()
        drawn_from = logits if changed is None else changed
        tokens = draw(drawn_from, settings, seeds, indices, allowed, seen)
        entropies, totals = entropy_and_logsumexp(logits)
    else:
        sampler = GumbelMax(logits, settings, barred, seen, measures=True)
        tokens = sampler.draw(seeds, indices)
        entropies, totals = (
            torch.cat(pieces) for pieces in zip(*sampler.measurements, strict=True)
        )
    chosen = logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    return SampledTokens(tokens, entropies, chosen.float() - totals)


def draw(
    logits: Tensor,
    settings: SamplingTensors,
    seeds: Tensor,
    indices: Tensor,
    allowed: Tensor | None = None,
    seen: Tensor | None = None,
) -> Tensor:
    """Draw one id per row, int64 [rows]: the one that `choose(filtered(...))` draws.

    Args:
        logits: raw float32 logits [rows, vocabulary]; not changed.
        settings: the rows' sampling parameters.
        seeds: 64-bit seeds, int64 [rows].
        indices: index of the token to draw in its phase, int64 [rows].
        allowed: bool [vocabulary], False for ids that the tokenizer does not have.
        seen: bool [rows, vocabulary], True for ids of the prompt and of what was generated so far.
    """
    if not settings.random:
        return _first(eligible(logits, settings, barred_by(allowed), seen)).squeeze(-1)
    return GumbelMax(logits, settings, barred_by(allowed), seen).draw(seeds, indices)


class GumbelMax:
    """Gumbel-max sampling of a batch: token = argmax(filtered logit + noise).

    The largest logit survives every filter. An id whose logit plus the greatest possible noise
    stays below the largest logit plus the least possible noise cannot win, so no noise is computed
    for it. The best candidate is drawn if it passes top_p; if it fails, every id with a logit no
    larger fails too, and the best of the others is next.
    """

    def __init__(
        self,
        logits: Tensor,
        settings: SamplingTensors,
        barred: Tensor | None,
        seen: Tensor | None,
        measures: bool = False,
    ) -> None:
        self._logits, self._settings, self._barred, self._seen = logits, settings, barred, seen
        self._unmodified = barred is None and not settings.penalises
        self._chunk_rows = rows_per_chunk(logits)
        self._min_logit = _min_logit(settings, logits.shape[-1])
        self._measures = measures
        # Entropies and log-sum-exps of every chunk, filled by `draw` if it `measures`.
        self.measurements: list[tuple[Tensor, Tensor]] = []
        # Buffers are reused by all chunks: on a CPU, fresh memory costs page faults.
        buffer = min(self._chunk_rows, len(logits)), logits.shape[-1]
        self._floats = torch.empty(3, *buffer, device=logits.device)
        self._words = torch.empty(2, *buffer, dtype=torch.int32, device=logits.device)

    def draw(self, seeds: Tensor, indices: Tensor) -> Tensor:
        """The drawn ids, int64 [rows]."""
        settings = self._settings
        words = row_words(seeds.unsqueeze(1), indices.unsqueeze(1))
        ids, candidate_logits, total, complete = self._candidates(words)
        if settings.max_top_k:
            total, candidate_logits = _within_top_k(candidate_logits, total, complete, settings)
        candidate_logits.masked_fill_(candidate_logits < settings.min_p.log(), -torch.inf)
        first = candidate_logits.argmax(dim=-1, keepdim=True)
        scores = gumbel(field(words, low_word(ids))).add_(candidate_logits)
        best = scores.argmax(dim=-1, keepdim=True)
        while settings.uses_top_p:
            level = candidate_logits.gather(-1, best)
            above = self._mass_above(candidate_logits, level, total, complete)
            fails = (above >= settings.top_p * total) & (settings.top_p < 1)
            if not fails.any():
                break
            scores.masked_fill_(fails & (candidate_logits <= level), -torch.inf)
            best = scores.argmax(dim=-1, keepdim=True)
        best = torch.where(settings.temperature == 0, first, best)
        return ids.gather(-1, best).squeeze(-1)

    def _candidates(self, words: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Ids that may win, in order, and their scaled logits, padded with minus infinity.

        Returns:
            ids and scaled logits, both [rows, candidates]; the mass of each row [rows, 1]; and
            whether a row's candidates are all of its ids above some logit, bool [rows, 1].
        """
        size = self._logits.shape[-1]
        rows, ids, candidate_logits, totals, complete = [], [], [], [], []
        for start in range(0, len(self._logits), self._chunk_rows):
            chunk = slice(start, start + self._chunk_rows)
            settings = self._settings.select(chunk)
            scaled = self._scaled(chunk, settings, self._measures)
            weights = torch.exp(scaled, out=self._floats[1, : len(scaled)])
            total = weights.sum(dim=-1, keepdim=True)
            places = _near_largest(scaled, weights, total, settings)
            by_noise = False
            if places is None:
                chunk_words = words[0][chunk], words[1][chunk]
                places, total, by_noise = self._search_all(
                    chunk, settings, scaled, weights, total, chunk_words
                )
            candidate_logits.append(scaled.flatten()[places])
            rows.append(places.div(size, rounding_mode="floor").add_(start))
            ids.append(places.remainder_(size))
            totals.append(total)
            complete.append(torch.full_like(total, not by_noise, dtype=torch.bool))
        row = torch.cat(rows)
        counts = row.bincount(minlength=len(self._logits))
        place = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
        shape = len(self._logits), max(1, int(counts.max()))
        padded_ids = row.new_zeros(shape).index_put_((row, place), torch.cat(ids))
        values = torch.cat(candidate_logits)
        padded_logits = values.new_full(shape, -torch.inf).index_put_((row, place), values)
        return padded_ids, padded_logits, torch.cat(totals), torch.cat(complete)

    def _search_all(
        self,
        chunk: slice,
        settings: SamplingTensors,
        scaled: Tensor,
        weights: Tensor,
        total: Tensor,
        words: tuple[Tensor, Tensor],
    ) -> tuple[Tensor, Tensor, bool]:
        """Places of ids that may win, each row's mass, and whether noise helped to find them."""
        min_logit = self._min_logit[chunk]
        if settings.max_top_k:
            min_logit = torch.maximum(min_logit, _near_top_k(scaled, settings))
        mask = _reaching(scaled, min_logit)
        by_noise = int(mask.count_nonzero()) * 32 > mask.numel()
        if by_noise:
            if settings.max_top_k:
                by_k = _top_k(scaled, settings)
                min_logit = torch.maximum(min_logit, by_k)
                total = weights.masked_fill(scaled < by_k, 0.0).sum(dim=-1, keepdim=True)
            mask = self._mask_by_noise(scaled, weights, words)
            mask &= _reaching(scaled, min_logit)
        return _places(mask), total, by_noise

    def _scaled(self, chunk: slice, settings: SamplingTensors, measures: bool = False) -> Tensor:
        logits = self._logits[chunk].float()
        buffer = self._floats[0, : len(logits)]
        if measures and not self._unmodified:
            self.measurements.append(entropy_and_logsumexp(logits))
        seen = None if self._seen is None else self._seen[chunk]
        logits = eligible(logits, settings, self._barred, seen)
        largest = logits.amax(dim=-1, keepdim=True)
        shifted = torch.sub(logits, largest, out=buffer)
        if measures and self._unmodified:
            entropy, total = shifted_entropy_and_logsumexp(shifted, self._floats[1, : len(logits)])
            self.measurements.append((entropy, largest.squeeze(-1) + total))
        return over_temperature(shifted, settings)

    def _mask_by_noise(
        self, scaled: Tensor, weights: Tensor, words: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Where a noisy score may reach that of the largest logit; overwrites `weights`."""
        ids = low_word(torch.arange(scaled.shape[-1], device=scaled.device))
        noise_words = field(words, ids, self._words[:, : len(scaled)])
        # A score is no less if v <= -log(1-v) <= weight * (-log(1-v) of the largest).
        limit = gumbel(noise_words.gather(-1, _first(scaled))).neg_().exp_().mul_(1.01 * 2.0**31)
        noise_words.bitwise_right_shift_(1).bitwise_and_((1 << 31) - 1)
        upper_bits = self._floats[2, : len(scaled)].copy_(noise_words)
        return _reaching(weights.mul_(limit).add_(1.0), upper_bits)

    def _mass_above(
        self, candidate_logits: Tensor, level: Tensor, total: Tensor, complete: Tensor
    ) -> Tensor:
        """The mass [rows, 1] of scaled logits above `level`."""
        above = candidate_logits.exp().mul_(candidate_logits > level).sum(dim=-1, keepdim=True)
        certain = level.exp() > (1 - self._settings.top_p) * total * 1.0001
        unsure = ~(complete | certain)
        for start in range(0, len(above), self._chunk_rows):
            chunk = slice(start, start + self._chunk_rows)
            if unsure[chunk].any():
                scaled = self._scaled(chunk, self._settings.select(chunk))
                mass = scaled.exp().mul_(scaled > level[chunk]).sum(dim=-1, keepdim=True)
                above[chunk] = torch.where(unsure[chunk], mass, above[chunk])
        return above


def _min_logit(settings: SamplingTensors, size: int) -> Tensor:
    """A scaled logit [rows, 1] below which an id cannot win, whatever the logits."""
    min_logit = torch.full_like(settings.top_p, MIN_NOISE - MAX_NOISE)
    min_logit = torch.maximum(min_logit, settings.min_p.log())
    # All ids below this hold together less than what top_p leaves out.
    rest = (1 - settings.top_p).div_(size).log_().sub_(1)
    min_logit = torch.where(settings.top_p < 1, torch.maximum(min_logit, rest), min_logit)
    return min_logit.masked_fill_(settings.top_k > 0, -torch.inf)  # top_k's mass needs all its ids


def _near_largest(
    scaled: Tensor, weights: Tensor, total: Tensor, settings: SamplingTensors
) -> Tensor | None:
    """Places of ids near the largest that surely hold all that top_p keeps; None if none are."""
    if scaled.device.type != "cpu" or not settings.top_p_alone:
        return None
    size = scaled.shape[-1]
    negligible = total * (1 - settings.top_p) * 0.9
    negligible.masked_fill_(settings.top_k > 0, 0.0)
    for min_logit in _NEAR_LARGEST:
        places = np.flatnonzero(scaled.numpy() >= np.float32(min_logit))
        mass_of_places = np.bincount(places // size, weights.numpy().ravel()[places], len(scaled))
        if bool((total - torch.from_numpy(mass_of_places).unsqueeze(1) < negligible).all()):
            return torch.from_numpy(places)
    return None


def _top_k(scaled: Tensor, settings: SamplingTensors) -> Tensor:
    """The smallest scaled logit [rows, 1] that passes top_k."""
    largest = scaled.topk(min(settings.max_top_k, scaled.shape[-1]), dim=-1).values
    by_k = largest.gather(-1, settings.top_k.clamp(min=1, max=largest.shape[-1]) - 1)
    return by_k.masked_fill_(settings.top_k == 0, -torch.inf)


def _near_top_k(scaled: Tensor, settings: SamplingTensors) -> Tensor:
    """A scaled logit [rows, 1] that at least top_k logits reach: the maxima of top_k blocks do."""
    blocks = scaled.shape[-1] // 64
    if settings.max_top_k * 2 > blocks:
        return _top_k(scaled, settings)
    return _top_k(scaled[:, : blocks * 64].reshape(-1, blocks, 64).amax(dim=-1), settings)


def _within_top_k(
    candidate_logits: Tensor, total: Tensor, complete: Tensor, settings: SamplingTensors
) -> tuple[Tensor, Tensor]:
    """The mass of top_k, and `candidate_logits` with minus infinity outside of it."""
    limited = complete & (settings.top_k > 0)
    fails = limited & (candidate_logits < _top_k(candidate_logits, settings))
    candidate_logits = candidate_logits.masked_fill(fails, -torch.inf)
    return torch.where(
        limited, candidate_logits.exp().sum(dim=-1, keepdim=True), total
    ), candidate_logits


# On a CPU, NumPy compares and searches ten times as fast as PyTorch.


def _first(values: Tensor) -> Tensor:
    """Index of each row's first largest value, [rows, 1]."""
    if values.device.type != "cpu":
        return values.argmax(dim=-1, keepdim=True)
    return torch.from_numpy(values.numpy().argmax(axis=-1, keepdims=True))


def _reaching(values: Tensor, min_logit: Tensor) -> Tensor:
    if values.device.type != "cpu":
        return values >= min_logit
    return torch.from_numpy(values.numpy() >= min_logit.numpy())


def _places(mask: Tensor) -> Tensor:
    """Flat indices at which a mask holds."""
    if mask.device.type != "cpu":
        return mask.flatten().nonzero().squeeze(-1)
    return torch.from_numpy(np.flatnonzero(mask.numpy()))
