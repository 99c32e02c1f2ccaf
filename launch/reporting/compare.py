"""Compares two runs on the samples that they share: which was right where the other was not."""

from dataclasses import replace

import pandas as pd

from pipeline.analysis import estimates
from pipeline.analysis.table import POINT, Table

SAMPLE = ("task", "example", "sample", "cue")
# Further columns by which samples are matched, the closest match first.
MATCHES = (("step", "temperature", "seed"), ("step", "temperature"), ("seed",), ())
NAMES = {
    "right_right": "both right",
    "right_wrong": "only the first right",
    "wrong_right": "only the second right",
    "wrong_wrong": "neither right",
}


def compared(ours: Table, theirs: Table) -> tuple[pd.DataFrame, str]:
    """Count, by task and pass, the samples that were right in both runs, in one or in none.

    Returns those counts with paired estimates (a frame as `estimates.flips` makes it, its columns
    named by `NAMES`), and a sentence on what was matched. `change` is the second's accuracy less
    the first's. Every sample is in one pair at most: samples are matched by task, example, index
    and cue, and by step, temperature and seed as far as the two runs share these; of several
    samples that this does not tell apart, none is matched.
    """
    sides = [_keys(table) for table in (ours, theirs)]
    by, pairs = _pairs(*sides)
    found = estimates.flips(_as_passes(pairs, ours)).rename(columns=NAMES)
    counts = [f"{len(pairs)} of {len(side)}" for side in sides]
    named = ", ".join([*SAMPLE[:-1], "pass", *by])
    about = f"Matched by {named}: {counts[0]} passes of the first, {counts[1]} of the second."
    return found, about


def _pairs(ours: pd.DataFrame, theirs: pd.DataFrame) -> tuple[tuple[str, ...], pd.DataFrame]:
    """The closest of `MATCHES` that finds pairs, and the pairs, a line each with both verdicts."""
    for by in MATCHES:
        keys = [*SAMPLE, *by]
        once = [side[~side.duplicated(keys, keep=False)] for side in (ours, theirs)]
        pairs = once[0].merge(once[1], on=keys, suffixes=("", "_theirs"), validate="one_to_one")
        if len(pairs):
            return by, pairs
    return (), pairs


def _keys(table: Table) -> pd.DataFrame:
    """Passes with what they are matched by, as values: categories of two tables differ."""
    place = ["step", "temperature", "seed"]
    found = table.joined(["cue", "correct"], by=["task", "example", "sample", *place, *table.by])
    # A merge takes missing values for equal ones only where both sides hold objects.
    return found.astype({name: object for name in (*SAMPLE, *place, *table.by)})


def _as_passes(pairs: pd.DataFrame, ours: Table) -> Table:
    """A table in which the second run's pass follows the first's, for paired estimates."""
    rows = pairs[["task", "example", "sample", *ours.by]].reset_index(drop=True)
    rows = rows.assign(**{name: "" for name in POINT if name != "task"})
    parts = [
        pd.DataFrame(
            {"row": rows.index, "cue": pairs["cue"].to_numpy(), "entropy": float("nan")}
            | {"pass": name, "correct": pairs[column].to_numpy()}
        )
        for name, column in (("pass1", "correct"), ("pass2", "correct_theirs"))
    ]
    return replace(ours, files=[], rows=rows, passes=pd.concat(parts, ignore_index=True))
