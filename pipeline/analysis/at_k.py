"""avg@k, pass@k and maj@k of one or more samples per example."""

from collections.abc import Sequence
from functools import lru_cache
from math import comb
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from pipeline.analysis.columns import Array, mixed
from pipeline.analysis.table import Table
from pipeline.spec import SpecError

Votes = Sequence[tuple[int, float]]
# Sets hashes of the number of silent samples apart from those of votes: an answer that is never
# right has the share 0.0, whose bits are those of the number 0.
SILENT = np.uint64(0xD1B54A32D192ED03)


def at_k(table: Table, ks: Sequence[int] | None = None) -> pd.DataFrame:
    """By point and pass: for every k the means over examples and their standard errors.

    `avg_at_k`: the share of right samples. `pass_at_k`: the chance that k samples drawn without
    replacement hold a right one (unbiased). `maj_at_k`: the chance that the answer which most of
    k samples give is right; samples without an answer do not vote, ties are broken evenly. Samples
    without a verdict are left out. Default ks: 1, 2, 4 ... and the fewest samples of an example.

    Raises:
        SpecError: a k above that number.
    """
    known = table.passes["correct"].notna()
    columns = ["pass", "cue", "correct", "no_answer", "answer"]
    joined = table.joined(columns, known, [*table.point, "example"])
    keys = [*table.point, "pass", "cue"]
    lines: list[dict[str, Any]] = []
    for names, group in joined.groupby(keys, observed=True, dropna=False, sort=True):
        at, samples, right = _counts(group)
        smallest = int(samples.min())
        votes, index = _votes(group, at)
        for k in _chosen(ks, smallest, dict(zip(keys, names, strict=True))):
            estimates = {
                "avg_at_k": right / samples,
                "pass_at_k": pass_at_k(samples, right, k),
                "maj_at_k": np.array([maj_at_k(given, silent, k) for given, silent in votes])[
                    index
                ],
            }
            line = dict(zip(keys, names, strict=True)) | {"examples": len(samples), "k": k}
            for name, values in estimates.items():
                line |= {name: values.mean(), f"{name}_se": standard_error(values)}
            lines.append(line)
    names_at_k = [f"{name}_at_k{end}" for name in ("avg", "pass", "maj") for end in ("", "_se")]
    return pd.DataFrame(lines, columns=[*keys, "examples", "k", *names_at_k])


def standard_error(values: Array) -> float:
    """Standard error of the mean of independent values; NaN for a single one."""
    return float(stats.sem(values)) if len(values) > 1 else float("nan")


def pass_at_k(samples: Array, right: Array, k: int) -> Array:
    """Chance that k of an example's samples hold at least one of its `right` ones."""
    pairs, index = np.unique(np.stack([samples, right]), axis=1, return_inverse=True)
    found: Array = stats.hypergeom.sf(0, pairs[0], pairs[1], k)[index.ravel()]
    return found


def maj_at_k(votes: Votes, silent: int, k: int) -> float:
    """Chance that the majority of k samples is right.

    `votes`: per answer, how many samples give it and the share of them that is right; `silent`
    samples give none. Nobody voting counts as wrong.
    """
    ordered = sorted(votes)
    chances = _chances(tuple(count for count, _ in ordered), silent, k)
    return sum(share * chance for (_, share), chance in zip(ordered, chances, strict=True))


@lru_cache(maxsize=1 << 16)
def _chances(counts: tuple[int, ...], silent: int, k: int) -> tuple[float, ...]:
    """For every answer, given so many times, the chance that it wins the vote of k samples."""
    subsets = comb(sum(counts) + silent, k)
    chances = []
    for index, count in enumerate(counts):
        others = counts[:index] + counts[index + 1 :]
        wins = (_wins(count, top, others, silent, k) for top in range(1, count + 1))
        chances.append(sum(wins) / subsets)
    return tuple(chances)


def _wins(count: int, top: int, others: tuple[int, ...], silent: int, k: int) -> float:
    """Subsets of size k in which an answer has `top` votes and none has more.

    A subset in which t other answers have as many counts as 1 / (t + 1).
    """
    if top > k:
        return 0.0
    # ways[t, n]: ways to choose n of the others' samples so that t of them tie and none has more.
    ways = np.zeros((len(others) + 1, k + 1))
    ways[0, 0] = 1
    for size in others:
        fewer = [comb(size, n) if n < top else 0 for n in range(k + 1)]
        following = np.array([np.convolve(line, fewer)[: k + 1] for line in ways])
        if top <= size:
            following[1:, top:] += comb(size, top) * ways[:-1, : k + 1 - top]
        ways = following
    rest = [comb(silent, n) for n in range(k + 1)]
    found = 0.0
    for ties, line in enumerate(ways):
        found += float(np.convolve(line, rest)[k - top]) / (ties + 1)
    return comb(count, top) * found


def _counts(group: pd.DataFrame) -> tuple[Array, Array, Array]:
    """Which example each sample belongs to, by number; samples and right ones of every example."""
    _, at = np.unique(group["example"].to_numpy(), return_inverse=True)
    samples = np.bincount(at)
    return at, samples, np.bincount(at, group["correct"]).astype(np.int64)


def _votes(group: pd.DataFrame, at: Array) -> tuple[list[tuple[Votes, int]], Array]:
    """How examples vote: the distinct ways (with the silent samples), and which one each has.

    Ways are told apart by a sum of 64-bit hashes, so that a million samples take no loop.
    """
    votes = group["no_answer"].to_numpy() == 0
    silent = np.bincount(at[~votes], minlength=int(at.max()) + 1)
    voting = group[votes]
    answers = voting["correct"].astype(float).groupby([at[votes], voting["answer"].to_numpy()])
    cast = answers.agg(["size", "mean"])
    owner = cast.index.get_level_values(0).to_numpy()
    size, share = cast["size"].to_numpy(), cast["mean"].to_numpy()
    ways = mixed(silent.astype(np.uint64) ^ SILENT)
    np.add.at(ways, owner, mixed(mixed(share.view(np.uint64)) + size.astype(np.uint64)))
    _, first, index = np.unique(ways, return_index=True, return_inverse=True)
    spans = zip(np.searchsorted(owner, first), np.searchsorted(owner, first, "right"), strict=True)
    given = [list(zip(size[a:b].tolist(), share[a:b].tolist(), strict=True)) for a, b in spans]
    return list(zip(given, silent[first].tolist(), strict=True)), index


def _chosen(ks: Sequence[int] | None, smallest: int, names: dict[str, Any]) -> list[int]:
    if ks is None:
        powers = [2**n for n in range(smallest.bit_length()) if 2**n <= smallest]
        return sorted({*powers, smallest})
    for k in ks:
        if not 1 <= k <= smallest:
            place = f"run {names['run']}, step {names['step']}, {names['pass']}"
            raise SpecError(
                f"--k must lie between 1 and {smallest}, the fewest samples that an example of "
                f"{place} has, got {k}; leave --k out, or finish the run"
            )
    return sorted(set(ks))
