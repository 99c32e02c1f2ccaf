"""A frame of passes -> the numbers behind the report's plots and tables.

The frame has one line per pass, as `Table.joined` makes it, and `label`: `pass 1` or the cue.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

FIRST = "pass 1"
COLUMNS = ("run", "task", "step", "T", "pass", "rows", "accuracy %", "SE", "entropy (nats)", "SE")
BIN = 0.1  # nats
TOP = 6.0


def points(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Means with standard errors per task and pass: at each step and temperature, and pooled.

    `place` names what a point is at; over the rest it is pooled.
    """
    found = []
    order = {label: number for number, label in enumerate(labels(frame))}
    for by in (["step", "temperature"], ["step"], ["temperature"], []):
        keys = ["task", "label", *by]
        for values, group in frame.groupby(keys, observed=True, dropna=False):
            point = {"step": None, "temperature": None} | dict(zip(keys, values, strict=True))
            point |= _mean("accuracy", group["correct"], group["example"])
            point |= _mean("entropy", group["entropy"], group["example"])
            found.append(_plain(point | {"rows": len(group)}) | {"place": by})
    return sorted(found, key=lambda point: [str(point["task"]), *_place(point), order[point["label"]]])


def _place(point: dict[str, Any]) -> list[float]:
    return [-1.0 if point[name] is None else point[name] for name in ("step", "temperature")]


def _mean(name: str, values: "pd.Series[float]", clusters: "pd.Series[Any]") -> dict[str, Any]:
    known = values.notna()
    mean, error = clustered(values[known].to_numpy(float), clusters[known])
    return {name: mean, f"{name}_se": error}


def clustered(values: Any, clusters: "pd.Series[Any]") -> tuple[float | None, float | None]:
    """Mean and its standard error, samples of one example being one cluster."""
    if not len(values):
        return None, None
    mean = float(values.mean())
    sums = pd.Series(values - mean).groupby(pd.factorize(clusters)[0]).sum()
    if len(sums) < 2:
        return mean, None
    scale = len(sums) / (len(sums) - 1)
    return mean, math.sqrt(scale * float((sums**2).sum())) / len(values)


def histograms(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Counts of rows by their mean entropy, right and wrong ones apart."""
    found = []
    edges = np.arange(0, TOP + BIN, BIN)
    keys = ["task", "label", "correct"]
    for values, group in frame.groupby(keys, observed=True, dropna=False):
        task, label, correct = values
        counts, _ = np.histogram(group["entropy"].dropna().clip(upper=TOP - BIN / 2), edges)
        if not counts.any():
            continue
        right = None if pd.isna(correct) else bool(correct)
        last = int(np.flatnonzero(counts)[-1]) + 1
        counted = {"right": right, "width": BIN, "counts": counts[:last].tolist()}
        found.append(_plain({"task": task, "label": label}) | counted)
    return found


def flips(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """How verdicts changed from pass 1 to each later pass of the same row."""
    first = frame[frame["label"] == FIRST].set_index("row")["correct"]
    later = frame[frame["label"] != FIRST]
    found = []
    for values, group in later.groupby(["task", "label"], observed=True, dropna=False):
        before = first.reindex(group["row"]).to_numpy(float)
        after = group["correct"].to_numpy(float)
        known = ~(np.isnan(before) | np.isnan(after))
        if known.any():
            counts = _changes(before[known] > 0, after[known] > 0)
            keys = dict(zip(("task", "label"), values, strict=True))
            found.append(_plain(keys) | counts)
    return found


def _changes(before: Any, after: Any) -> dict[str, int]:
    return {
        "stayed_right": int((before & after).sum()),
        "right_to_wrong": int((before & ~after).sum()),
        "wrong_to_right": int((~before & after).sum()),
        "stayed_wrong": int((~before & ~after).sum()),
    }


def labels(frame: pd.DataFrame) -> list[str]:
    """The passes that occur, pass 1 first, cues in the order of rows."""
    found = list(dict.fromkeys(frame["label"]))
    return sorted(found, key=lambda label: label != FIRST)


def lines(found: Sequence[dict[str, Any]], name: str) -> list[list[Any]]:
    """Points at a step and a temperature as lines of a table, see `COLUMNS`."""
    table = []
    for point in found:
        if point["place"] == ["step", "temperature"]:
            percents = [_percent(point["accuracy"]), _percent(point["accuracy_se"])]
            place = [name, point["task"], point["step"], point["temperature"], point["label"]]
            table.append(
                [*place, point["rows"], *percents, point["entropy"], point["entropy_se"]]
            )
    return table


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 2)


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Numbers as Python's own, NaN as None."""
    found = {}
    for name, value in values.items():
        plain = value.item() if isinstance(value, np.generic) else value
        missing = isinstance(plain, float) and math.isnan(plain)
        found[name] = None if missing or plain is pd.NA else plain
    return found
