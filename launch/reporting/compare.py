"""Two runs on the same samples: which was right where the other was not."""

import pandas as pd

from pipeline.analysis import estimates
from pipeline.analysis.table import POINT, Table

SAME = ["task", "example", "sample", "cue"]
PLACED = [*SAME, "step", "temperature"]
NAMES = {
    "right_right": "both right",
    "right_wrong": "only the first right",
    "wrong_right": "only the second right",
    "wrong_wrong": "neither right",
}


def compared(ours: Table, theirs: Table) -> pd.DataFrame:
    """By task and pass: samples of both runs that were right in both, one or none of them.

    `change` is the second's accuracy less the first's. Samples are matched at the same step and
    temperature; where no two are, by task, example and sample, of those that each run has once.
    """
    sides = [_keys(table.joined()) for table in (ours, theirs)]
    pairs = sides[0].merge(sides[1], on=PLACED, suffixes=("", "_theirs"))
    if pairs.empty:
        once = [side[~side.duplicated(SAME, keep=False)] for side in sides]
        pairs = once[0].merge(once[1], on=SAME, suffixes=("", "_theirs"))
    found = estimates.flips(_as_passes(pairs))
    return found.rename(columns=NAMES)


def _keys(joined: pd.DataFrame) -> pd.DataFrame:
    """Matched columns as values: categories of two tables differ."""
    columns = [*PLACED, "problem", "correct"]
    return joined[columns].astype({"task": object, "cue": object})


def _as_passes(pairs: pd.DataFrame) -> Table:
    """A table in which the second run's pass follows the first's, for paired estimates."""
    rows = pairs[["task", "example", "problem", "sample"]].reset_index(drop=True)
    rows = rows.assign(**{name: "" for name in POINT if name != "task"})
    parts = [
        pd.DataFrame(
            {"row": rows.index, "cue": pairs["cue"].to_numpy(), "entropy": float("nan")}
            | {"pass": name, "correct": pairs[column].to_numpy()}
        )
        for name, column in (("pass1", "correct"), ("pass2", "correct_theirs"))
    ]
    return Table([], rows, pd.concat(parts, ignore_index=True))
