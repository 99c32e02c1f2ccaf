"""The numbers that the report plots and lists, made of a table of rows.

Every estimate is that of `pipeline.analysis`; here rows are grouped, named and put into an order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from launch.reporting import cells
from launch.reporting.compare import compared
from launch.reporting.order import in_order, tells_runs
from launch.reporting.plain import plain, python_values
from pipeline.analysis import estimates, summary
from pipeline.analysis.at_k import at_k
from pipeline.analysis.table import POINT, Table

FIRST = "pass 1"
PLACE = ("step", "temperature")
MOST_GROUPS = 24  # sets of values of `by` that plots can choose from
BIN, TOP = 0.1, 6.0  # nats, of histograms
ABOUT_ERRORS = (
    "± is the standard error, samples of one example counted as one cluster; "
    "a share of 0 or 100 % stands before its 95 % interval (Wilson)."
)
STEPS_NOTE = (
    "All cues of the last pass 2 together; S: means over samples, E: shares of examples. "
    "A missing verdict counts as wrong."
)
Line = dict[str, Any]


def labelled(table: Table) -> Table:
    """The table with passes named as a report names them: `pass 1`, and cues."""
    first = table.passes["pass"] == "pass1"
    cues = table.passes["cue"].astype("category").cat.add_categories(FIRST)
    passes = table.passes.assign(cue=cues.where(~first, FIRST))
    passes["pass"] = pd.Categorical.from_codes((~first).astype(int), ["pass1", "pass2"])
    return replace(table, passes=passes)


def pooled(table: Table, kept: Sequence[str], by: Sequence[str] = ()) -> Table:
    """The table as if its rows differed, of the columns of a point, in those of `kept` alone.

    `by` are the columns of the data and of a sweep that still tell rows apart.
    """
    rows = table.rows.assign(**{name: "" for name in POINT if name not in kept})
    return replace(table, rows=rows, by=tuple(by))


def groupings(table: Table) -> list[tuple[str, ...]]:
    """The groupings that plots offer: all rows as one, and by all of `by` if its values are few."""
    by = list(table.by)
    few = bool(by) and len(table.rows[by].drop_duplicates()) <= MOST_GROUPS
    return [(), tuple(by)] if few else [()]


def points(table: Table) -> list[Line]:
    """Accuracy and entropy with errors: at each step and temperature, and pooled over either.

    `place` names what a point is at.
    """
    found: list[Line] = []
    places = (PLACE, PLACE[:1], PLACE[1:], ())
    for place, by in product(places, groupings(table)):
        frame = estimates.accuracy(pooled(table, ["task", "model", *place], by))
        for line in plain(frame):
            line |= {"place": list(place), "rows": line["entropy_rows"] or line["accuracy_rows"]}
            found.append(_named(line, by))
    return found


def flips(table: Table) -> list[Line]:
    """What became of right and wrong rows under each cue, over all steps and temperatures.

    `p` is the p-value by sign flips as tables show it, None where there is none.
    """
    return [
        _named(line, by) | {"p": cells.cell(line, "p_signs")}
        for by in groupings(table)
        for line in plain(estimates.flips(pooled(table, ["task", "model"], by)))
    ]


def histograms(table: Table) -> list[Line]:
    """Counts of rows by their mean entropy, right and wrong ones apart."""
    found: list[Line] = []
    edges = np.arange(0, TOP + BIN / 2, BIN)
    for by in groupings(table):
        found += _histograms_by(table, by, edges)
    return found


def _histograms_by(table: Table, by: Sequence[str], edges: Any) -> list[Line]:
    found = []
    keys = ["task", "model", *by, "cue", "correct"]
    columns = ["cue", "correct", "entropy"]
    joined = table.joined(columns, by=["task", "model", *by])
    for values, group in joined.groupby(keys, observed=True, dropna=False):
        counts, _ = np.histogram(group["entropy"].dropna().clip(upper=TOP - BIN / 2), edges)
        if counts.any():
            line = python_values(dict(zip(keys, values, strict=True)))
            right = None if line["correct"] is None else bool(line["correct"])
            last = int(np.flatnonzero(counts)[-1]) + 1
            counted = {"right": right, "width": BIN, "counts": counts[:last].tolist()}
            found.append(_named(line, by) | counted)
    return found


def labels(table: Table) -> list[str]:
    """The passes that occur: pass 1, then cues in the order of rows."""
    found = [str(label) for label in dict.fromkeys(table.passes["cue"])]
    return sorted(found, key=lambda label: label != FIRST)


def tables(named: Sequence[tuple[str, Table]]) -> Iterator[Line]:
    """Every table of the report, over all its runs."""
    by = [name for name in named[0][1].by if all(name in table.by for _, table in named)]
    if len(named) > 1:
        paired, matched = compared(named[0][1], named[1][1])
        about = f"{matched} {_PAIRED}"
        titled = {"title": "The runs on the same samples", "about": about}
        yield titled | as_shown(paired, ["task", *by])
    kept = [name for name in POINT[1:] if name == "task" or _varies(named, name)]
    kept += dict.fromkeys(name for _, table in named for name in table.by)
    sides = ["side"] if len(named) > 1 else []
    for title, about, make in (
        ("Passes: means over samples", ABOUT_ERRORS, estimates.passes),
        ("avg@k, pass@k, maj@k: means over examples", _AT_K, at_k),
        ("Flips", _FLIPS, estimates.flips),
        ("Entropy and success", _ODDS, estimates.entropy_odds),
        ("Accuracy by entropy quartile", ABOUT_ERRORS, estimates.entropy_quartiles),
        ("Spontaneous shifts in pass 1", "Found by words, or by a judge.", estimates.shifts),
        ("By step", STEPS_NOTE, _steps),
    ):
        frames = [make(table).assign(side=name) for name, table in named]
        frame = pd.concat([frame for frame in frames if len(frame)] or frames[:1])
        if frame.empty:
            continue
        if tells_runs(frame, [*sides, *kept]):
            runs = ["run"]
        else:
            runs, frame = [], in_order(frame, kept)
        yield {"title": title, "about": about} | as_shown(frame, [*sides, *runs, *kept])


_TESTS = (
    "p (sign flips) is exact and keeps the samples of one example together; McNemar's takes all "
    "samples as independent."
)
_FLIPS = f"Pass 1 before, each cue after. {_TESTS}"
_PAIRED = f"Change: the second's accuracy less the first's. {_TESTS}"
_AT_K = "Of k samples: the share that is right, any right, the majority right; ± over examples."
_ODDS = "Odds ratio of success in pass 2 per standard deviation of pass-1 entropy."


def _steps(table: Table) -> pd.DataFrame:
    return summary.steps(table, ("run", "step"))


def _varies(named: Sequence[tuple[str, Table]], column: str) -> bool:
    return len({value for _, t in named for value in t.rows[column].dropna().unique()}) > 1


def as_shown(frame: pd.DataFrame, kept: Sequence[str]) -> Line:
    """A frame as people read it: columns that say nothing left out, values beside their errors.

    `numbers` says of each column whether it holds any.
    """
    hidden = {"pass", "control", *(name for name in [*POINT, "side"] if name not in kept)}
    hidden |= {name for name in frame if cells.is_beside(str(name), frame)}
    names = [
        str(n) for n in frame if n not in hidden and not (frame[n].isna() | (frame[n] == "")).all()
    ]
    names.sort(key=lambda name: [*kept, name].index(name) if name in kept else len(kept))
    lines = list(plain(frame))
    return {
        "columns": ["pass" if name == "cue" else cells.heading(name) for name in names],
        "numbers": [any(_is_number(line[name]) for line in lines) for name in names],
        "rows": [[cells.cell(line, name) for name in names] for line in lines],
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _named(line: Line, by: Sequence[str] = ()) -> Line:
    """The line with two names for the page.

    `group` is the task, its model, and the values of `by`; `label` is `pass 1` or the cue.
    """
    parts = [line["task"], line["model"], *(f"{name}={line[name]}" for name in by)]
    group = " · ".join(str(part) for part in parts if part not in (None, ""))
    return line | {"group": group or "all rows", "label": line["cue"]}
