"""Which passes a row has, and how they are called.

A row has `pass1`, then one later pass per cue: `pass2` where there is one cue; `pass2a`, `pass2b`
and so on in the spec's order where there are several, and then `pass2` repeats the numbers of the
last one whose cue is no control.
"""

import re
from collections.abc import Mapping, Sequence
from string import ascii_lowercase
from typing import Any

from pipeline.store.files import Row, StoreError

Fields = dict[str, Any]

FIRST = "pass1"
SECOND = "pass2"
LETTERED = tuple(f"{SECOND}{letter}" for letter in ascii_lowercase)
PASS_NAMES = (FIRST, SECOND, *LETTERED)
_LETTERED = re.compile(f"{SECOND}[a-z]")
MAX_CUES = len(LETTERED)


def is_later(name: str) -> bool:
    """Whether `name` is that of a pass after the first, as any version called it."""
    return name.startswith(SECOND)


def repeats(name: str, names: Mapping[str, Any]) -> bool:
    """Whether `name` is the `pass2` of a row that has lettered passes as well."""
    return name == SECOND and any(_LETTERED.fullmatch(other) for other in names)


def name_passes(passes: Sequence[Fields]) -> dict[str, Any]:
    """Later passes under their names in a row; `pass2` is None where there is none.

    The `pass2` that repeats a lettered pass is left without its arrays.
    """
    if len(passes) <= 1:
        return {SECOND: passes[0] if passes else None}
    named = dict(zip(LETTERED, passes, strict=False))
    last = next((p for p in reversed(passes) if not p["control"]), passes[-1])
    scalars = {k: v for k, v in last.items() if not isinstance(v, list | dict)}
    return named | {SECOND: scalars | {"reconsider_markers": last["reconsider_markers"]}}


def free_names(row: Row) -> list[str]:
    """The lettered names that a row does not use."""
    return [name for name in LETTERED if not row.get(name)]


def stored_passes(row: Row | None) -> list[Fields]:
    """The later passes of a row of this version, one per cue, in order.

    Raises:
        StoreError: something that should be a pass is not one of this version.
    """
    if row is None:
        return []
    names = [name for name in LETTERED if name in row] or ([SECOND] if row.get(SECOND) else [])
    for name in (FIRST, *names):
        fields = row.get(name)
        complete = isinstance(fields, dict) and (name == FIRST or "cue_hash" in fields)
        if not complete:
            key = f"{row['example_id']}, sample {row['sample_idx']}"
            raise StoreError(
                f"the stored row of {key} has no whole {name}: its line was edited, or another "
                "version wrote it; remove the line to have the row made anew"
            )
    return [row[name] for name in names]


def later_passes(row: Row) -> list[Fields]:
    """The later passes of a row of any version that hold something, `pass2` at the end."""
    names = sorted(filter(is_later, row), key=lambda name: (name == SECOND, name))
    return [row[name] for name in names if isinstance(row[name], dict) and row[name]]


def passes_with_output(row: Row) -> dict[str, Fields]:
    """All passes of a row of any version that hold an output, by name."""
    return {
        name: fields
        for name, fields in row.items()
        if name.startswith("pass") and isinstance(fields, dict) and "output" in fields
    }


def distinct_passes(row: Row) -> dict[str, Fields]:
    """The passes of a row of any version by name, without a `pass2` that repeats a lettered one.

    Rows of the original's oldest runner are one pass without an object of its own.
    """
    if not row.get(FIRST) and "output" in row:
        return {FIRST: {name: row[name] for name in ("output", "entropy") if name in row}}
    lettered = [name for name in LETTERED if row.get(name)]
    passes = {name: row[name] for name in (FIRST, *lettered) if row.get(name)}
    last = row.get(SECOND)
    if last and not any(last.get("output") == row[name].get("output") for name in lettered):
        passes[SECOND] = last
    return passes
