"""What tells the run folders of a sweep apart: the keys that it varied, as columns of a table.

A folder's name is made of the run alone (task, model, temperature and a fingerprint), so that the
same run is found again whichever sweep asks for it. What a sweep varied stands in run.json, as
`swept`, and is shown wherever runs stand side by side.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from launch.reporting.runs import dotted_keys, record
from pipeline.analysis.table import Table

# Keys that rows have columns of their own for.
OWN_COLUMNS = ("task", "model", "model.step", "sampling.temperature")
# Keys that name folders or share out the work.
PLACES = (
    "run.name",
    "run.root",
    "run.dir",
    "run.text_output",
    "run.inferencer_output",
    "run.shard",
    "run.shards",
    "run.wait",
)
LEFT_OUT = (*OWN_COLUMNS, *PLACES)
UNNAMED = "default"  # the value of a key that neither a run's line nor its spec names


def by_swept_keys(table: Table) -> Table:
    """The table grouped as well by the keys that tell its run folders apart.

    A seed may be such a key. Each becomes a column of the rows, unless they have one of that name.
    """
    columns = swept_columns([file.path.parent for file in table.files])
    number = table.rows["file"].to_numpy()
    added = {
        name: [values[file] for file in number]
        for name, values in columns.items()
        if name not in table.rows
    }
    by = dict.fromkeys([*table.by, *columns])
    return replace(table, rows=table.rows.assign(**added), by=tuple(by))


def swept_columns(folders: Sequence[Path]) -> dict[str, list[str]]:
    """The keys that tell run folders apart, with the value that each folder has.

    These are the keys that their sweeps varied, by `swept` of each run.json. Where these leave two
    folders alike, as they do if the folders were not made by one sweep, the keys in which the lines
    of the folders differ join them. Keys that rows have columns of their own for are left out, and
    so are those that name folders.
    """
    known = [_Known(record(folder) or {}) for folder in folders]
    keys = dict.fromkeys(key for one in known for key in one.swept)
    if not _tell_apart(known, list(keys), len(set(folders))):
        keys |= dict.fromkeys(key for one in known for key in one.typed)
    columns = {key: [one.value(key) for one in known] for key in keys if key not in LEFT_OUT}
    return {key: values for key, values in columns.items() if len(set(values)) > 1}


class _Known:
    """What a run.json says of the keys that made its run. It may be anybody's: all is data."""

    def __init__(self, stored: Mapping[str, Any]) -> None:
        swept = stored.get("swept")
        self.swept = {str(k): str(v) for k, v in swept.items()} if isinstance(swept, dict) else {}
        overrides = stored.get("overrides")
        lines = overrides if isinstance(overrides, list) else []
        self.typed = dict(_split(str(line)) for line in lines)
        self._spec = dotted_keys(stored.get("spec", {}))
        names = ("task.name", "model.name", "sampling.temperature")
        self.own = (stored.get("step"), *(str(self._spec.get(name)) for name in names))

    def value(self, key: str) -> str:
        """The value of a key as it was typed, else as the spec holds it."""
        typed = self.typed | self.swept
        return typed.get(key, str(self._spec.get(key, UNNAMED)))


def _tell_apart(known: Sequence[_Known], keys: Sequence[str], num_folders: int) -> bool:
    """Whether no two folders have the same values of `keys` and of the columns of their own."""
    return len({(one.own, *(one.value(key) for key in keys)) for one in known}) >= num_folders


def _split(override: str) -> tuple[str, str]:
    key, _, value = override.partition("=")
    return key.lstrip("+~"), value
