"""What summaries estimate with statsmodels: errors by cluster, flips, and what entropy tells.

Samples of one example are not independent: standard errors are clustered by example.
"""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import statsmodels.api as sm
from scipy import signal, stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.tools.sm_exceptions import (
    ConvergenceWarning,
    HessianInversionWarning,
    PerfectSeparationError,
    PerfectSeparationWarning,
)

from pipeline.analysis import summary
from pipeline.analysis.table import Table

QUARTILES = ("lowest", "second", "third", "highest")
FAILED_FITS = (ConvergenceWarning, HessianInversionWarning, PerfectSeparationWarning)


def clustered_mean(values: Any, clusters: Any) -> tuple[float, float]:
    """Mean, and its standard error clustered by `clusters` (NaN for fewer than two of them)."""
    y, groups = np.asarray(values, float), pd.factorize(np.asarray(clusters))[0]
    if len(y) == 0:
        return float("nan"), float("nan")
    if groups.max() == 0:
        return float(y.mean()), float("nan")
    fit = sm.OLS(y, np.ones(len(y))).fit(cov_type="cluster", cov_kwds={"groups": groups})
    return float(y.mean()), float(fit.bse[0])


def accuracy(table: Table) -> pd.DataFrame:
    """Accuracy and mean entropy of every pass with standard errors."""
    keys = _pass_keys(table)
    lines = []
    joined = table.joined(["pass", "cue", "correct", "entropy"], by=_owner(table))
    for names, group in _groups(joined, keys):
        line: dict[str, Any] = dict(zip(keys, names, strict=True))
        for name, column in (("accuracy", "correct"), ("entropy", "entropy")):
            known = group[group[column].notna()]
            line[name], line[f"{name}_se"] = clustered_mean(known[column], known["example"])
            line[f"{name}_rows"] = len(known)
        judged = group[group["correct"].notna()]
        low, high = share_interval(judged["correct"], judged["example"])
        lines.append(line | {"accuracy_low": low, "accuracy_high": high})
    measured = [f"{name}{end}" for name in ("accuracy", "entropy") for end in ("", "_se", "_rows")]
    return pd.DataFrame(lines, columns=[*keys, *measured, "accuracy_low", "accuracy_high"])


def share_interval(values: Any, clusters: Any) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927), whose samples come in clusters.

    It counts as many samples as would have the same error if they were independent; where the
    share is 0 or 1, and no error can be told, one for each cluster. A mean plus or minus its error
    says nothing there.
    """
    count = pd.Series(np.asarray(clusters)).nunique()
    mean, error = clustered_mean(values, clusters)
    if not count:
        return float("nan"), float("nan")
    if 0 < mean < 1 and error > 0:
        # n of independent samples; the error is inflated by G / (G - 1), which is taken out again.
        number = mean * (1 - mean) / error**2 * count / (count - 1)
        number = min(max(number, 1.0), float(len(values)))
    else:
        number = float(count)
    z = float(stats.norm.ppf(0.975))
    middle = (mean + z**2 / (2 * number)) / (1 + z**2 / number)
    half = z / (1 + z**2 / number) * np.sqrt(mean * (1 - mean) / number + z**2 / (4 * number**2))
    return max(float(middle - half), 0.0), min(float(middle + half), 1.0)


def passes(table: Table) -> pd.DataFrame:
    """`summary.passes`, with standard errors beside accuracy and entropy."""
    keys = _pass_keys(table)
    found = summary.passes(table)
    if found.empty:
        return found
    beside = ["accuracy_se", "accuracy_low", "accuracy_high", "entropy_se"]
    errors = accuracy(table)[[*keys, *beside]]
    whole: pd.DataFrame = found.merge(errors, on=keys, how="left", validate="1:1")
    for name in reversed(beside):
        place = list(whole).index(name.rpartition("_")[0]) + 1
        whole.insert(place, name, whole.pop(name))
    return whole


def paired(table: Table) -> pd.DataFrame:
    """Later passes beside their row's pass 1: `before`, `after`, `entropy1`.

    A verdict that is missing is NaN.
    """
    passes = table.passes
    is_first = passes["pass"] == "pass1"
    first = passes.loc[is_first, ["row", "correct", "entropy"]].set_index("row")
    later = table.joined(["row", "pass", "cue", "correct"], ~is_first, _owner(table))
    place = first.index.get_indexer(later["row"])
    for name, column in (("before", "correct"), ("entropy1", "entropy")):
        values = first[column].to_numpy()
        later[name] = np.where(place < 0, np.nan, values[place] if len(values) else np.nan)
    return later.rename(columns={"correct": "after"})


def flips(table: Table) -> pd.DataFrame:
    """By cue: what became of right and wrong rows, and the change in accuracy.

    `p_signs` tests the change with the samples of one example kept together; `p_exact` is
    McNemar's, which takes all samples as independent.
    """
    keys = _pass_keys(table)
    lines = []
    pairs = paired(table)
    pairs = pairs[pairs["before"].notna() & pairs["after"].notna()]
    for names, group in _groups(pairs, keys):
        before, after = group["before"] > 0, group["after"] > 0
        lost, gained = int((before & ~after).sum()), int((~before & after).sum())
        stayed, neither = int((before & after).sum()), int((~before & ~after).sum())
        difference = group["after"] - group["before"]
        change, error = clustered_mean(difference, group["example"])
        lines.append(
            dict(zip(keys, names, strict=True))
            | {"rows": len(group), "right_right": stayed, "right_wrong": lost}
            | {"wrong_right": gained, "wrong_wrong": neither, "change": change, "change_se": error}
            | {"p_signs": sign_flips(difference.groupby(group["example"].to_numpy()).sum())}
            | {"p_exact": float(mcnemar([[stayed, lost], [gained, neither]], exact=True).pvalue)}
        )
    columns = ["rows", "right_right", "right_wrong", "wrong_right", "wrong_wrong"]
    tests = ["change", "change_se", "p_signs", "p_exact"]
    return pd.DataFrame(lines, columns=[*keys, *columns, *tests])


def sign_flips(sums: Any) -> float:
    """Exact two-sided p of the sum of `sums`, whole numbers, when each may have either sign.

    The randomization test for matched pairs (Fisher 1935) with clusters as pairs: were before and
    after exchangeable within each cluster, all assignments of signs would be equally likely. For
    sums of 1 and -1 it is McNemar's exact test.
    """
    values = np.asarray(sums).astype(int)
    reached = abs(int(values.sum()))
    sizes, counts = np.unique(np.abs(values[values != 0]), return_counts=True)
    chances, span = np.ones(1), 0  # of the sums -span ... span
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        part = np.zeros(2 * size * count + 1)
        part[:: 2 * size] = stats.binom.pmf(np.arange(count + 1), count, 0.5)
        chances, span = signal.convolve(chances, part), span + size * count
    tails = chances[: span - reached + 1].sum() + chances[span + reached :].sum()
    return float(np.clip(tails, 0, 1))


def entropy_odds(table: Table) -> pd.DataFrame:
    """By cue: odds ratio of pass-2 success per standard deviation of pass-1 entropy.

    With its 95 % confidence interval, clustered by example. `note` says why where there is none.
    """
    keys = _pass_keys(table)
    lines = []
    for names, group in _groups(paired(table), keys):
        known = group[group["entropy1"].notna() & group["after"].notna()]
        if known.empty:
            continue
        line: dict[str, Any] = dict(zip(keys, names, strict=True)) | {"rows": len(known)}
        lines.append(line | odds_ratio(known["after"], known["entropy1"], known["example"]))
    columns = ["rows", "entropy_sd", "odds_ratio", "low", "high", "p", "note"]
    return pd.DataFrame(lines, columns=[*keys, *columns])


def odds_ratio(success: Any, entropy: Any, clusters: Any) -> dict[str, Any]:
    """Logit of `success` (0, 1) on standardized `entropy`."""
    y, x = np.asarray(success, float), np.asarray(entropy, float)
    spread = float(x.std(ddof=1)) if len(x) > 1 else 0.0
    found: dict[str, Any] = {"entropy_sd": spread, "note": ""}
    if not spread > 0 or len(np.unique(y)) < 2:
        return found | {"note": "success or entropy does not vary"}
    design = sm.add_constant((x - x.mean()) / spread)
    groups = pd.factorize(np.asarray(clusters))[0]
    if groups.max() == 0:
        return found | {"note": "one example alone"}
    try:
        with warnings.catch_warnings():
            for kind in FAILED_FITS:
                warnings.simplefilter("error", kind)
            fit = sm.Logit(y, design).fit(disp=0, cov_type="cluster", cov_kwds={"groups": groups})
    except (*FAILED_FITS, PerfectSeparationError, np.linalg.LinAlgError) as error:
        return found | {"note": f"no fit: {type(error).__name__}"}
    low, high = np.exp(fit.conf_int()[1])
    ratio = float(np.exp(fit.params[1]))
    return found | {"odds_ratio": ratio, "low": low, "high": high, "p": float(fit.pvalues[1])}


def entropy_quartiles(table: Table) -> pd.DataFrame:
    """Accuracy of every pass by the quartile of its own entropy; equal edges are joined.

    `entropy_from` and `entropy_to` are the least and the greatest entropy in a quartile.
    """
    keys = _pass_keys(table)
    known = table.passes["entropy"].notna() & table.passes["correct"].notna()
    joined = table.joined(["pass", "cue", "entropy", "correct"], known, _owner(table))
    lines = []
    for names, group in _groups(joined, keys):
        edges = np.unique(np.quantile(group["entropy"], [0, 0.25, 0.5, 0.75, 1]))
        last = max(len(edges) - 2, 0)
        place = np.clip(np.searchsorted(edges, group["entropy"], side="left") - 1, 0, last)
        for number in range(last + 1):
            part = group[place == number]
            mean, error = clustered_mean(part["correct"], part["example"])
            name = QUARTILES[number] if last == 3 else f"{number + 1} of {last + 1}"
            lines.append(
                dict(zip(keys, names, strict=True))
                | {"quartile": name, "entropy_from": part["entropy"].min()}
                | {"entropy_to": part["entropy"].max()}
                | {"rows": len(part), "accuracy": mean, "accuracy_se": error}
            )
    columns = ["quartile", "entropy_from", "entropy_to", "rows", "accuracy", "accuracy_se"]
    return pd.DataFrame(lines, columns=[*keys, *columns])


def shifts(table: Table) -> pd.DataFrame:
    """Share of first passes that reconsider of their own accord, and accuracy with and without.

    `by` is `markers` (words found in the text) or `judge` (annotations of a judge, where rows have
    them).
    """
    columns = ["marked", "judged_shift", "correct"]
    joined = table.joined(columns, table.passes["pass"] == "pass1", _owner(table))
    lines = []
    for names, group in _groups(joined, table.point):
        for by, column in (("markers", "marked"), ("judge", "judged_shift")):
            known = group[group[column].notna()]
            if len(known):
                lines.append(
                    dict(zip(table.point, names, strict=True)) | {"by": by} | _shift(known, column)
                )
    columns = ["by", "rows", "share", "share_se", "accuracy_with", "accuracy_with_se"]
    return pd.DataFrame(
        lines, columns=[*table.point, *columns, "accuracy_without", "accuracy_without_se"]
    )


def _shift(known: pd.DataFrame, column: str) -> dict[str, float]:
    share, error = clustered_mean(known[column], known["example"])
    found: dict[str, float] = {"rows": len(known), "share": share, "share_se": error}
    judged = known[known["correct"].notna()]
    for name, wanted in (("with", 1), ("without", 0)):
        part = judged[judged[column] == wanted]
        mean, error = clustered_mean(part["correct"], part["example"])
        found |= {f"accuracy_{name}": mean, f"accuracy_{name}_se": error}
    return found


def _pass_keys(table: Table) -> list[str]:
    return [*table.point, "pass", "cue"]


def _owner(table: Table) -> list[str]:
    return [*table.point, "example"]


def _groups(frame: pd.DataFrame, by: list[str]) -> Any:
    return frame.groupby(by, observed=True, dropna=False, sort=True)
