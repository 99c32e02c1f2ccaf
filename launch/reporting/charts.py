"""A table of rows -> the numbers that the report plots and lists; every estimate is pipeline's."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from launch.reporting.compare import compared
from pipeline.analysis import estimates, summary
from pipeline.analysis.at_k import at_k
from pipeline.analysis.table import POINT, Table

FIRST = "pass 1"
PLACE = ("step", "temperature")
BIN, TOP = 0.1, 6.0  # nats, of histograms
ABOUT_ERRORS = "± is the standard error, samples of one example counted as one cluster."
# Shares, shown as percentages: with their errors, and on their own.
SHARES = (
    *("accuracy", "accuracy_with", "accuracy_without", "share", "change"),
    *("avg_at_k", "pass_at_k", "maj_at_k"),
)
RATES = ("improved", "no_answer", "truncated", "tag_violations", "marked")
NATS = ("entropy", "entropy_think", "entropy_answer", "entropy_sd")
HEADINGS = {
    **{"cue": "pass", "side": "report", "p_exact": "p (exact)", "change": "change of accuracy"},
    **{"right_right": "stayed right", "right_wrong": "right to wrong"},
    **{"wrong_right": "wrong to right", "wrong_wrong": "stayed wrong"},
    **{"avg_at_k": "avg@k", "pass_at_k": "pass@k", "maj_at_k": "maj@k"},
}
S0_NOTE = "Percentages and entropies as seed S0 defined them: S per sample, E per example."
Line = dict[str, Any]


def labelled(table: Table) -> Table:
    """The table with passes named as a report names them: `pass 1`, and cues."""
    first = table.passes["pass"] == "pass1"
    cues = table.passes["cue"].astype("category").cat.add_categories(FIRST)
    passes = table.passes.assign(cue=cues.where(~first, FIRST))
    passes["pass"] = pd.Categorical.from_codes((~first).astype(int), ["pass1", "pass2"])
    return Table(table.files, table.rows, passes, table.broken, table.superseded)


def pooled(table: Table, kept: Sequence[str]) -> Table:
    """The table as if its rows differed, of the columns of a point, in those of `kept` alone."""
    rows = table.rows.assign(**{name: "" for name in POINT if name not in kept})
    return Table(table.files, rows, table.passes, table.broken, table.superseded)


def points(table: Table) -> list[Line]:
    """Accuracy and entropy with errors: at each step and temperature, and pooled over either.

    `place` names what a point is at.
    """
    found: list[Line] = []
    for place in (PLACE, PLACE[:1], PLACE[1:], ()):
        frame = estimates.accuracy(pooled(table, ["task", "model", *place]))
        for line in plain(frame):
            line |= {"place": list(place), "rows": line["entropy_rows"] or line["accuracy_rows"]}
            found.append(_named(line))
    return found


def flips(table: Table) -> list[Line]:
    """What became of right and wrong rows under each cue, over all steps and temperatures."""
    return [_named(line) for line in plain(estimates.flips(pooled(table, ["task", "model"])))]


def histograms(table: Table) -> list[Line]:
    """Counts of rows by their mean entropy, right and wrong ones apart."""
    found = []
    edges = np.arange(0, TOP + BIN / 2, BIN)
    keys = ["task", "model", "cue", "correct"]
    for values, group in table.joined().groupby(keys, observed=True, dropna=False):
        counts, _ = np.histogram(group["entropy"].dropna().clip(upper=TOP - BIN / 2), edges)
        if counts.any():
            line = _cells(dict(zip(keys, values, strict=True)))
            right = None if line["correct"] is None else bool(line["correct"])
            last = int(np.flatnonzero(counts)[-1]) + 1
            counted = {"right": right, "width": BIN, "counts": counts[:last].tolist()}
            found.append(_named(line) | counted)
    return found


def labels(table: Table) -> list[str]:
    """The passes that occur: pass 1, then cues in the order of rows."""
    found = [str(label) for label in dict.fromkeys(table.passes["cue"])]
    return sorted(found, key=lambda label: label != FIRST)


def tables(named: Sequence[tuple[str, Table]]) -> Iterator[Line]:
    """Every table of the report, over all its runs."""
    if len(named) > 1:
        paired = compared(named[0][1], named[1][1])
        yield {"title": "The runs on the same samples", "about": _PAIRED} | shown(paired, ["task"])
    kept = [name for name in POINT if _tells(named, name) or name == "task"]
    for title, about, make in (
        ("Passes", ABOUT_ERRORS, passes),
        ("avg@k, pass@k, maj@k", "Of k samples: the mean, any right, the majority right.", at_k),
        ("Flips", "Pass 1 before, each cue after, with McNemar's exact p.", estimates.flips),
        ("Entropy and success", _ODDS, estimates.entropy_odds),
        ("Accuracy by entropy quartile", ABOUT_ERRORS, estimates.entropy_quartiles),
        ("Spontaneous shifts in pass 1", "Found by words, or by a judge.", estimates.shifts),
        ("Seed S0's table", S0_NOTE, _s0),
    ):
        frames = [make(table).assign(side=name) for name, table in named]
        frame = pd.concat([frame for frame in frames if len(frame)] or frames[:1])
        if frame.empty:
            continue
        sides = ["side"] if len(named) > 1 else []
        yield {"title": title, "about": about} | shown(frame, [*sides, *kept])


_PAIRED = "Change: the second's accuracy less the first's; McNemar's exact p."
_ODDS = "Odds ratio of success in pass 2 per standard deviation of pass-1 entropy."


def passes(table: Table) -> pd.DataFrame:
    """Means of every pass, with the errors of accuracy and entropy."""
    keys = [*POINT, "pass", "cue"]
    errors = estimates.accuracy(table)[[*keys, "accuracy_se", "entropy_se"]]
    means = summary.passes(table, keys)
    return means.merge(errors, on=keys, how="left", validate="one_to_one")


def _s0(table: Table) -> pd.DataFrame:
    return summary.steps(table, ("run", "step"))


def _tells(named: Sequence[tuple[str, Table]], column: str) -> bool:
    """Whether a column varies; a run's name only where nothing else tells its points apart."""
    rest = [name for name in POINT if name != "run"]
    if column == "run":
        return any(
            len(table.rows[rest].drop_duplicates()) < len(table.rows[POINT].drop_duplicates())
            for _, table in named
        )
    return len({value for _, t in named for value in t.rows[column].dropna().unique()}) > 1


def shown(frame: pd.DataFrame, kept: Sequence[str]) -> Line:
    """A frame as people read it: columns that say nothing left out, values beside their errors."""
    hidden = {"pass", "control", *(name for name in [*POINT, "side"] if name not in kept)}
    hidden |= {name for name in frame if name.endswith("_se")}
    names = [
        str(n) for n in frame if n not in hidden and not (frame[n].isna() | (frame[n] == "")).all()
    ]
    names.sort(key=lambda name: [*kept, name].index(name) if name in kept else len(kept))
    lines = [[_cell(line, name) for name in names] for line in plain(frame)]
    return {"columns": [_heading(name) for name in names], "rows": lines}


def _heading(name: str) -> str:
    text = HEADINGS.get(name, name.replace("_", " "))
    unit = " %" if name in SHARES + RATES else " (nats)" if name in NATS else ""
    return text + unit


def _cell(line: Line, name: str) -> Any:
    value, error = line[name], line.get(f"{name}_se")
    if value is None or not isinstance(value, int | float):
        return value
    factor = 100 if name in SHARES + RATES else 1
    if f"{name}_se" not in line:
        return value if isinstance(value, int) else float(f"{factor * value:.4g}")
    digits = 1 if factor == 100 else 3
    around = "" if error is None else f" ± {factor * error:.{digits}f}"
    return f"{factor * value:.{digits}f}{around}"


def _named(line: Line) -> Line:
    """`group`: the task, with its model; `label`: pass 1 or the cue."""
    parts = [line["task"], line["model"]]
    group = " · ".join(str(part) for part in parts if part not in (None, ""))
    return line | {"group": group or "all rows", "label": line["cue"]}


def plain(frame: pd.DataFrame) -> Iterator[Line]:
    """Lines of a frame with Python's own numbers; what is missing is None."""
    for line in frame.to_dict("records"):
        yield _cells({str(name): value for name, value in line.items()})


def _cells(line: Line) -> Line:
    found = {}
    for name, value in line.items():
        item = value.item() if isinstance(value, np.generic) else value
        missing = item is pd.NA or (isinstance(item, float) and not math.isfinite(item))
        found[name] = None if missing else item
    return found
