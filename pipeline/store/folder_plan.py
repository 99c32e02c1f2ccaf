"""What a run folder is to hold, as the point that it belongs to says."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.protocols import Example
from pipeline.store.files import Row
from pipeline.store.row_heads import Key


@dataclass(frozen=True, slots=True)
class FolderPlan:
    """What a run folder is to hold, and how many write to it."""

    rows_path: Path
    facts: Mapping[str, Any]  # what run.json says of the point: `fingerprint`, `identity`, ...
    traces: Sequence[tuple[Example, int]]  # (example, sample) in the order in which they begin
    order: Sequence[Key]  # of the rows of the finished file
    is_complete: Callable[[Row], bool]  # whether the head of a row has all passes asked for
    shared: bool = False
    shard: int | None = None
    work: str = ""  # of shards: equal for those that make the same rows, with the same passes

    @property
    def folder(self) -> Path:
        """Where everything lies."""
        return self.rows_path.parent

    @property
    def fingerprint(self) -> str:
        """That of every row in the folder."""
        return str(self.facts["fingerprint"])
