"""What tasks over a data set are told alike: where rows are, how to ask, which phases there are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from components.data_sets import columns, records
from components.tasks import tag_phases
from pipeline.protocols import Phase
from pipeline.spec import require


@dataclass(kw_only=True, eq=False)
class Questions:
    """The keys that the YAMLs of such tasks share; a task adds its own as further fields.

    A task says in `FIELDS` which keys `task.columns` may have.
    """

    FIELDS: ClassVar[tuple[str, ...]]

    name: str
    data: Mapping[str, Any]
    columns: Mapping[str, Any]
    system_prompt: str | None
    few_shot: Sequence[Mapping[str, str]] = ()
    tagged_phases: bool = True
    think_cap: int = 750
    answer_cap: int = 50
    max_output_tokens: int = 900
    mirrors: Mapping[str, Sequence[str]] | None = None
    source: records.Source = field(init=False)
    phases: tuple[Phase, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Check what is shared, and make source and phases of it."""
        for key in ("think_cap", "answer_cap", "max_output_tokens"):
            cap = getattr(self, key)
            whole = isinstance(cap, int) and cap >= 1
            require(whole, f"task.{key}", "be a number of tokens, 1 or more", cap)
        for shot in self.few_shot:
            pair = isinstance(shot, Mapping) and set(shot) == {"user", "assistant"}
            pair = pair and all(isinstance(text, str) for text in shot.values())
            require(pair, "task.few_shot", "hold entries with texts user and assistant", shot)
        columns.check_columns(self.columns, self.FIELDS)
        self.source = records.source(self.data, self.mirrors)
        caps = (self.think_cap, self.answer_cap, self.max_output_tokens)
        self.phases = tag_phases.phases(self.tagged_phases, *caps)
