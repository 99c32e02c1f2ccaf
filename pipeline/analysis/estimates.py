"""What summaries estimate with statsmodels: errors by cluster, flips, and what entropy tells.

Samples of one example are not independent: standard errors are clustered by example.
"""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import statsmodels.api as sm
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.tools.sm_exceptions import (
    ConvergenceWarning,
    HessianInversionWarning,
    PerfectSeparationError,
    PerfectSeparationWarning,
)

from pipeline.analysis import summary
from pipeline.analysis.table import POINT, Table

PASS = [*POINT, "pass", "cue"]
OWNER = [*POINT, "example"]
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
    lines = []
    joined = table.joined(["pass", "cue", "correct", "entropy"], by=OWNER)
    for names, group in _groups(joined, PASS):
        line: dict[str, Any] = dict(zip(PASS, names, strict=True))
        for name, column in (("accuracy", "correct"), ("entropy", "entropy")):
            known = group[group[column].notna()]
            line[name], line[f"{name}_se"] = clustered_mean(known[column], known["example"])
            line[f"{name}_rows"] = len(known)
        lines.append(line)
    measured = [f"{name}{end}" for name in ("accuracy", "entropy") for end in ("", "_se", "_rows")]
    return pd.DataFrame(lines, columns=[*PASS, *measured])


def passes(table: Table) -> pd.DataFrame:
    """`summary.passes`, with standard errors beside accuracy and entropy."""
    found = summary.passes(table)
    if found.empty:
        return found
    errors = accuracy(table)[[*PASS, "accuracy_se", "entropy_se"]]
    whole: pd.DataFrame = found.merge(errors, on=PASS, how="left", validate="1:1")
    for name in ("accuracy", "entropy"):
        whole.insert(list(whole).index(name) + 1, f"{name}_se", whole.pop(f"{name}_se"))
    return whole


def paired(table: Table) -> pd.DataFrame:
    """Later passes beside their row's pass 1: `before`, `after`, `entropy1`. All have verdicts."""
    passes = table.passes
    is_first = passes["pass"] == "pass1"
    first = passes.loc[is_first, ["row", "correct", "entropy"]].set_index("row")
    later = table.joined(["row", "pass", "cue", "correct"], ~is_first, OWNER)
    place = first.index.get_indexer(later["row"])
    for name, column in (("before", "correct"), ("entropy1", "entropy")):
        values = first[column].to_numpy()
        later[name] = np.where(place < 0, np.nan, values[place] if len(values) else np.nan)
    later = later.rename(columns={"correct": "after"})
    kept: pd.DataFrame = later[later["before"].notna() & later["after"].notna()]
    return kept


def flips(table: Table) -> pd.DataFrame:
    """By cue: what became of right and wrong rows, McNemar's exact p, the change in accuracy."""
    lines = []
    for names, group in _groups(paired(table), PASS):
        before, after = group["before"] > 0, group["after"] > 0
        lost, gained = int((before & ~after).sum()), int((~before & after).sum())
        stayed, neither = int((before & after).sum()), int((~before & ~after).sum())
        change, error = clustered_mean(group["after"] - group["before"], group["example"])
        lines.append(
            dict(zip(PASS, names, strict=True))
            | {"rows": len(group), "right_right": stayed, "right_wrong": lost}
            | {"wrong_right": gained, "wrong_wrong": neither, "change": change, "change_se": error}
            | {"p_exact": float(mcnemar([[stayed, lost], [gained, neither]], exact=True).pvalue)}
        )
    columns = ["rows", "right_right", "right_wrong", "wrong_right", "wrong_wrong"]
    return pd.DataFrame(lines, columns=[*PASS, *columns, "change", "change_se", "p_exact"])


def entropy_odds(table: Table) -> pd.DataFrame:
    """By cue: odds ratio of pass-2 success per standard deviation of pass-1 entropy.

    With its 95 % confidence interval, clustered by example. `note` says why where there is none.
    """
    lines = []
    for names, group in _groups(paired(table), PASS):
        known = group[group["entropy1"].notna()]
        line: dict[str, Any] = dict(zip(PASS, names, strict=True)) | {"rows": len(known)}
        lines.append(line | odds_ratio(known["after"], known["entropy1"], known["example"]))
    columns = ["rows", "entropy_sd", "odds_ratio", "low", "high", "p", "note"]
    return pd.DataFrame(lines, columns=[*PASS, *columns])


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
    """Accuracy of every pass by the quartile of its own entropy; equal edges are joined."""
    known = table.passes["entropy"].notna() & table.passes["correct"].notna()
    joined = table.joined(["pass", "cue", "entropy", "correct"], known, OWNER)
    lines = []
    for names, group in _groups(joined, PASS):
        edges = np.unique(np.quantile(group["entropy"], [0, 0.25, 0.5, 0.75, 1]))
        last = max(len(edges) - 2, 0)
        place = np.clip(np.searchsorted(edges, group["entropy"], side="left") - 1, 0, last)
        for number in range(last + 1):
            part = group[place == number]
            mean, error = clustered_mean(part["correct"], part["example"])
            name = QUARTILES[number] if last == 3 else f"{number + 1} of {last + 1}"
            lines.append(
                dict(zip(PASS, names, strict=True))
                | {"quartile": name, "low": part["entropy"].min(), "high": part["entropy"].max()}
                | {"rows": len(part), "accuracy": mean, "accuracy_se": error}
            )
    columns = ["quartile", "low", "high", "rows", "accuracy", "accuracy_se"]
    return pd.DataFrame(lines, columns=[*PASS, *columns])


def shifts(table: Table) -> pd.DataFrame:
    """Share of first passes that reconsider of their own accord, and accuracy with and without.

    `by` is `markers` (words found in the text) or `judge` (annotations of a judge, where rows have
    them).
    """
    columns = ["marked", "judged_shift", "correct"]
    joined = table.joined(columns, table.passes["pass"] == "pass1", OWNER)
    lines = []
    for names, group in _groups(joined, POINT):
        for by, column in (("markers", "marked"), ("judge", "judged_shift")):
            known = group[group[column].notna()]
            if len(known):
                lines.append(
                    dict(zip(POINT, names, strict=True)) | {"by": by} | _shift(known, column)
                )
    columns = ["by", "rows", "share", "share_se", "accuracy_with", "accuracy_with_se"]
    return pd.DataFrame(
        lines, columns=[*POINT, *columns, "accuracy_without", "accuracy_without_se"]
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


def _groups(frame: pd.DataFrame, by: list[str]) -> Any:
    return frame.groupby(by, observed=True, dropna=False, sort=True)
