"""Row columns that only some backends produce, such as usage, cost and endpoint.

It is said here how the values of several phases become one of a pass, and those of several passes
one of a row.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.protocols import Generation, Phase
from pipeline.store.pass_names import repeats

ROW_COLUMNS = ("endpoint", "deployment", "api_version")  # facts about the whole row
SUMS = ("usage", "cost_usd", "discarded_usd")  # numbers, or dicts of them: what was paid
BOUNDS = "entropy_lower_bounds"  # nats, one per token, from the k likeliest tokens alone


def finite_mean(values: Sequence[float] | None) -> float | None:
    """Mean of the finite values; None without any."""
    given = np.asarray(values or (), dtype=np.float64)
    finite = given[np.isfinite(given)].tolist()
    return math.fsum(finite) / len(finite) if finite else None


def total(values: Iterable[Any]) -> Any:
    """Sum of numbers, or of dicts of numbers key by key; None (unknown) adds nothing."""
    known = [value for value in values if value is not None]
    if not any(isinstance(value, Mapping) for value in known):
        return sum(known) if known else None
    keys = dict.fromkeys(key for value in known for key in value)
    return {key: total(value.get(key) for value in known) for key in keys}


def join_backend_columns(
    phases: Sequence[Phase], generations: Sequence[Generation], arrays: bool
) -> dict[str, Any]:
    """Columns of a pass from the backend's columns of its phases.

    What was paid is summed; entropy bounds are concatenated and averaged; anything else is kept
    once where the phases agree, else by phase name.
    """
    names = dict.fromkeys(name for generation in generations for name in generation.backend_columns)
    fields: dict[str, Any] = {}
    for name in names:
        by_phase = {
            p.name: g.backend_columns.get(name) for p, g in zip(phases, generations, strict=True)
        }
        values = list(by_phase.values())
        if name in SUMS:
            fields[name] = total(values)
        elif name == BOUNDS:
            bounds = None if None in values else [x for value in values for x in value or ()]
            fields["entropy_lower_bound"] = finite_mean(bounds)
            fields |= {BOUNDS: bounds} if arrays else {}
        else:
            fields[name] = values[0] if all(value == values[0] for value in values) else by_phase
    return fields


def lift(passes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The columns that passes give to their row, and the passes without them.

    `usage` and `cost_usd` stay in each pass, and the row holds their sums. A `pass2` that repeats a
    lettered pass is not counted twice.
    """
    own: dict[str, Any] = {}
    remaining: dict[str, Any] = {}
    for name, fields in passes.items():
        own |= {k: fields[k] for k in ROW_COLUMNS if k in (fields or {})}
        remaining[name] = fields and {k: v for k, v in fields.items() if k not in ROW_COLUMNS}
    paid = [fields for name, fields in passes.items() if fields and not repeats(name, passes)]
    for name in SUMS:
        if any(name in fields for fields in paid):
            own[name] = total(fields.get(name) for fields in paid)
    return own, remaining
