"""What tasks over a data set share: the keys of their YAMLs, and reading the data set.

The keys say where the rows are, which columns hold what, how to ask, and which phases there are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from components.data_sets import columns, records
from components.tasks import tag_phases
from pipeline.protocols import Example, Phase
from pipeline.spec import require


@dataclass(kw_only=True, eq=False)
class Questions:
    """The keys that the YAMLs of such tasks share; a task adds its own as further fields.

    A task says in `FIELDS` which keys `task.columns` may have besides `keep`, and makes an example
    of a record in `_example`. What `_example` does not read stays in the example's metadata, as
    `metadata`.
    """

    FIELDS: ClassVar[tuple[str, ...]]
    JUDGE: ClassVar[str] = "none"

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
            positive = isinstance(cap, int) and cap >= 1
            require(positive, f"task.{key}", "be a number of tokens, 1 or more", cap)
        for shot in self.few_shot:
            pair = isinstance(shot, Mapping) and set(shot) == {"user", "assistant"}
            pair = pair and all(isinstance(text, str) for text in shot.values())
            require(pair, "task.few_shot", "hold entries with texts user and assistant", shot)
        columns.check_columns(self.columns, self.FIELDS)
        self.source = records.source(self.data, self.mirrors)
        caps = (self.think_cap, self.answer_cap, self.max_output_tokens)
        self.phases = tag_phases.phases(self.tagged_phases, *caps)

    def _read(self, embedded: str) -> list[Example]:
        """The examples of the data set, or of the embedded file when the task names none."""
        return self._examples(records.load(self.source, embedded))

    def _examples(self, rows: Sequence[records.Record]) -> list[Example]:
        return records.examples([self._with_columns(row, self._example(row)) for row in rows])

    def _with_columns(self, row: records.Record, example: Example) -> Example:
        columns_left = columns.unmapped(row, self.columns)
        if not columns_left:
            return example
        return replace(example, metadata={**example.metadata, "metadata": columns_left})

    def _example(self, row: records.Record) -> Example:
        raise NotImplementedError
