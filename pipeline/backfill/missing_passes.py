"""Which rows of a file lack a later pass, and which pass 1 each of them reconsiders."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.analysis.row_files import parse
from pipeline.protocols import Cue
from pipeline.run.pass_fields import cue_hash
from pipeline.run.phases import CAP_KEYS
from pipeline.spec import SpecError, require
from pipeline.store.files import Row
from pipeline.store.pass_names import later_passes

GROUP_BY = ("model", "suite", "temperature", "step", "split", "problem")
# Rows that differ in one of these come from different runs, whatever groups them.
RUN_SETTINGS = ("model", "suite", "temperature", "step", "split", *CAP_KEYS.values())
Group = tuple[Any, ...]


@dataclass(slots=True)
class Selection:
    """Which rows are to get passes.

    `filter`: columns and the values they must have, compared as text ({step: 50}, or a list of
    `key=value`). `add`: also rows that have passes, if they lack one of the cues. `force`: every
    row, replacing the passes there are.
    """

    pass_key: str = "pass2"
    group_by: list[str] = field(default_factory=lambda: list(GROUP_BY))
    filter: Any = None
    max_problems: int | None = None
    max_rows: int | None = None
    add: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        """Check what the command line gave."""
        require(len(self.group_by) > 0, "backfill.group_by", "name at least one column", [])
        self._wanted()
        for name in ("max_problems", "max_rows"):
            limit = getattr(self, name)
            require(limit is None or limit >= 1, f"backfill.{name}", "be 1 or more", limit)

    def selects(self, row: Row) -> bool:
        """Whether every filter matches."""
        wanted = self._wanted().items()
        return all(row.get(k) is not None and str(row[k]) == v for k, v in wanted)

    def _wanted(self) -> dict[str, str]:
        if isinstance(self.filter, dict):
            return {str(name): str(value) for name, value in self.filter.items()}
        items = self.filter if isinstance(self.filter, list) else [self.filter]
        items = [] if self.filter is None else items
        for item in items:
            whole = isinstance(item, str) and item.partition("=")[0].strip() and "=" in item
            require(bool(whole), "backfill.filter", "be {key: value} or a list of key=value", item)
        return {k.strip(): v for k, v in (item.split("=", 1) for item in items)}

    def group(self, row: Row) -> Group:
        """The values that make rows share a pass 1."""
        return tuple(_hashable(row.get(name)) for name in self.group_by)

    def lacks(self, row: Row, cues: Sequence[Cue]) -> bool:
        """Whether a row is to get a pass."""
        if self.force:
            return True
        if self.add:
            return not all(
                any(answers(fields, cue) for fields in later_passes(row)) for cue in cues
            )
        return not row.get(self.pass_key)


@dataclass(frozen=True, slots=True)
class RowToFill:
    """A row that is to get passes.

    `offset` is where its line begins; `run_settings` are those of the run that made it; `group` are
    the values that it shares with the rows whose pass 1 it may reconsider.
    """

    offset: int
    run_settings: Group
    group: Group
    example_id: str
    sample: int
    problem: str


@dataclass(slots=True)
class Scan:
    """What a file holds.

    `pass1_places`: for each group, the offset of the line of every sample that has a pass 1.
    """

    to_fill: list[RowToFill] = field(default_factory=list)
    pass1_places: dict[Group, dict[int, int]] = field(default_factory=dict)
    rows: int = 0
    skipped: int = 0  # rows that lack a pass and have no sample, problem or pass 1 to start from
    broken: list[int] = field(default_factory=list)  # offsets of lines that are no rows


def scan(path: Path, selection: Selection, cues: Sequence[Cue]) -> Scan:
    """Read the file once. Of several lines with one key the last one counts."""
    scanned = Scan()
    to_fill: dict[tuple[Group, str, int], RowToFill] = {}
    with path.open("rb") as file:
        offset = 0
        for line in file:
            row = parse(line)
            if row is not None:
                row_to_fill = _note(scanned, row, offset, selection, cues)
                if row_to_fill:
                    to_fill[
                        row_to_fill.run_settings, row_to_fill.example_id, row_to_fill.sample
                    ] = row_to_fill
            elif line.strip():
                scanned.broken.append(offset)
            offset += len(line)
    scanned.to_fill = _limited(list(to_fill.values()), selection)
    return scanned


def _note(
    scanned: Scan, row: Row, offset: int, selection: Selection, cues: Sequence[Cue]
) -> RowToFill | None:
    scanned.rows += 1
    sample, first = sample_of(row), has_pass1(row)
    group = selection.group(row)
    if first and sample is not None:
        scanned.pass1_places.setdefault(group, {})[sample] = offset
    if not selection.selects(row) or not selection.lacks(row, cues):
        return None
    problem = row.get("problem")
    if sample is None or not isinstance(problem, str) or not first:
        scanned.skipped += 1
        return None
    return RowToFill(offset, run_settings(row), group, id_of(row), sample, problem)


def _limited(to_fill: list[RowToFill], selection: Selection) -> list[RowToFill]:
    if selection.max_problems is not None:
        problems = list(dict.fromkeys(row_to_fill.problem for row_to_fill in to_fill))[
            : selection.max_problems
        ]
        chosen = set(problems)
        to_fill = [row_to_fill for row_to_fill in to_fill if row_to_fill.problem in chosen]
    return to_fill[: selection.max_rows]


def answers(fields: dict[str, Any], cue: Cue) -> bool:
    """Whether a stored pass was made under `cue`; in old rows its text opens the output."""
    if fields.get("cue_hash") is not None:
        return bool(fields["cue_hash"] == cue_hash(cue))
    if isinstance(fields.get("cue_text"), str):
        return bool(fields["cue_text"].strip() == cue.text.strip())
    output = str(fields.get("output") or "")
    return output.removeprefix("<think>").lstrip().startswith(cue.text.strip())


def sample_of(row: Row) -> int | None:
    """The sample index, also where it was written as text."""
    try:
        return int(row["sample_idx"])
    except (KeyError, TypeError, ValueError):
        return None


def id_of(row: Row) -> str:
    """What names the example: its id, in old rows the problem."""
    name = row.get("example_id")
    return str(row.get("problem") if name is None else name)


def run_settings(row: Row) -> Group:
    """The settings of the run that made a row, as far as its columns tell."""
    return (*(_hashable(row.get(name)) for name in RUN_SETTINGS), row.get("phases"))


def has_pass1(row: Row) -> bool:
    """Whether there is a pass 1 with an output that is not blank."""
    first = row.get("pass1")
    output = first.get("output") if isinstance(first, dict) else None
    return isinstance(output, str) and bool(output.strip())


def _hashable(value: Any) -> Any:
    return repr(value) if isinstance(value, list | dict) else value


def split_cues(phrase: str) -> tuple[Cue, ...]:
    """Cues joined by three bars; blank pieces are dropped.

    Raises:
        SpecError: nothing but blanks and bars, or more cues than a row has names for.
    """
    texts = [text.strip() for text in phrase.split("|||") if text.strip()]
    if not 1 <= len(texts) <= 26:
        raise SpecError(f"backfill.phrase must hold 1 to 26 cues, got {phrase!r}")
    return tuple(Cue(f"cue{number}", text) for number, text in enumerate(texts, start=1))
