"""Lines of a data frame as Python's own values."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

Line = dict[str, Any]


def plain(frame: pd.DataFrame) -> Iterator[Line]:
    """Lines of a frame with Python's own numbers; what is missing is None."""
    for line in frame.to_dict("records"):
        yield python_values({str(name): value for name, value in line.items()})


def python_values(line: Line) -> Line:
    """A line without the types of NumPy and pandas; what is missing or not finite is None."""
    found = {}
    for name, value in line.items():
        item = value.item() if isinstance(value, np.generic) else value
        missing = item is pd.NA or (isinstance(item, float) and not math.isfinite(item))
        found[name] = None if missing else item
    return found
