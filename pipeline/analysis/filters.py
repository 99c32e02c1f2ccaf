"""Which rows summaries leave out: those of too many prompt variants, and beyond a group's cap."""

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.analysis.row_files import lines, parse
from pipeline.analysis.table import Table
from pipeline.store.files import Row, write_atomically

PROMPT_KEYS = (
    *("prompt", "prompt_text", "input_prompt", "input"),
    *("question_prompt", "fmt_prompt", "aug_prompt"),
)
Mask = Any  # a pandas series of booleans, indexed like the rows of a table


@dataclass(frozen=True, slots=True)
class Variants:
    """Drops every problem (or, by scope, everything) that was asked in more than `most` prompts.

    Prompts are counted after what `family` matches is deleted. Rows without a prompt count as none.
    """

    most: int
    key: str = "prompt"
    strict: bool = False  # no other key instead
    everywhere: bool = False  # count over all rows, not by problem
    family: re.Pattern[str] | None = None

    def prompt(self, row: Row) -> str | None:
        """The prompt of a row, its family's marks deleted."""
        keys = (self.key,) if self.strict else (self.key, *PROMPT_KEYS)
        found = next((v for key in keys if (v := nested(row, key)) is not None), None)
        if found is None:
            return None
        return self.family.sub("", str(found)) if self.family else str(found)

    def kept(self, table: Table) -> Mask:
        """Which rows stay."""
        groups = table.rows["problem"] * (0 if self.everywhere else 1)
        variants: dict[int, set[int]] = defaultdict(set)
        for index, row in table.stream():
            prompt = self.prompt(row)
            if prompt is not None:
                variants[int(groups.at[index])].add(hash(prompt))
        many = [group for group, prompts in variants.items() if len(prompts) > self.most]
        return ~groups.isin(many)


def capped(table: Table, most: int, key: str = "problem") -> Mask:
    """The first `most` rows of every group of every file; a group is a value of `key`."""
    if key == "problem":
        groups = table.rows["problem"]
    else:
        values = {index: _group(row, key) for index, row in table.stream()}
        groups = pd.Series(values, dtype=object).reindex(table.rows.index)
    return table.rows.groupby([table.rows["file"], groups], sort=False).cumcount() < most


def _group(row: Row, key: str) -> str:
    value = nested(row, key)
    if value is None and key == "prompt":
        value = row.get("problem")
    return "" if value is None else str(value)


def nested(row: Row, path: str) -> Any:
    """The value at a path such as `pass1.cue`; None where there is none."""
    value: Any = row
    for part in path.split("."):
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    return value


@dataclass(frozen=True, slots=True)
class Written:
    """A filtered file: the rows kept, of how many."""

    path: Path
    kept: int
    rows: int


def write_filtered(table: Table, kept: Mask, target: Path | None, source: Path) -> list[Written]:
    """Write the kept rows of every file below `target`, as they lie below `source`.

    Without a target over the file itself; its undecodable lines then go to `<file>.broken`. Lines
    stay as they are, byte for byte.
    """
    written = []
    for number, file in enumerate(table.files):
        rows = table.rows[table.rows["file"] == number]
        offsets = rows.loc[kept[rows.index], "offset"].tolist()
        path = file.path
        if target is None:
            _set_aside_broken(path)
        else:
            path = target / path.absolute().relative_to(source.absolute())
            path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (_whole(line) for line in lines(file.path, offsets)))
        written.append(Written(path, len(offsets), len(rows)))
    return written


def _set_aside_broken(path: Path) -> None:
    with path.open("rb") as file:
        broken = [_whole(line) for line in file if line.strip() and parse(line) is None]
    if broken:
        write_atomically(path.with_name(f"{path.name}.broken"), broken)


def _whole(line: bytes) -> bytes:
    return line if line.endswith(b"\n") else line + b"\n"
