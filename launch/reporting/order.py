"""Which columns tell the lines of a table apart for a reader, and the order of its lines."""

from collections.abc import Sequence

import pandas as pd

# What a run's name usually stands for.
PLACES = ("task", "model", "temperature", "step")


def tells_runs(frame: pd.DataFrame, by: Sequence[str]) -> bool:
    """Whether only the run's name tells some lines apart, and no place nor a column of `by`."""
    if "run" not in frame or len(frame[["run"]].drop_duplicates()) == 1:
        return False
    places = _places(frame, by)
    runs = frame[["run", *places]].drop_duplicates()
    return len(frame[places].drop_duplicates()) < len(runs)


def in_order(frame: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Lines by what tells their points apart; numbers that stand there as text are numbers."""
    places = _places(frame, by)
    return frame.sort_values(places, key=_as_numbers, kind="stable") if places else frame


def _places(frame: pd.DataFrame, by: Sequence[str]) -> list[str]:
    return [name for name in (*PLACES, *by) if name in frame]


def _as_numbers(column: pd.Series) -> pd.Series:
    values = column.astype(object)
    numbers = pd.to_numeric(values, errors="coerce")
    return values.astype(str) if (numbers.isna() & column.notna()).any() else numbers
