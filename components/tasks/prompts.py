"""Plain prompts without gold: from a data set, a text file with one a line, or the config.

A record of a data set:

    {"text": "Write a haiku about rain.", "system_prompt": "Answer in English."}
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from components.data_sets import columns, records
from components.grading import answers
from components.tasks import tag_phases
from components.tasks.questions import Questions
from pipeline.protocols import Example, Generation, Prompt
from pipeline.spec import require


@dataclass(kw_only=True, eq=False)
class Prompts(Questions):
    """Task `prompts`; the arguments are the keys of `conf/task/prompts.yaml`."""

    FIELDS = ("id", "prompt", "system_prompt")

    texts: Sequence[str] = ()
    tagged_phases: bool = False
    max_output_tokens: int = 100

    def __post_init__(self) -> None:
        """Check that the prompts come from one place."""
        Questions.__post_init__(self)
        named = self.source.path is not None or self.source.hub is not None
        rule = "be empty when task.data names a path or a hub id"
        require(not (self.texts and named), "task.texts", rule, self.texts)

    def examples(self) -> Sequence[Example]:
        """All prompts, in order."""
        if not self.texts:
            return self._read("prompts.jsonl")
        rows = [records.Record({"text": t}, f"task.texts[{i}]") for i, t in enumerate(self.texts)]
        return self._examples(rows)

    def prompt(self, example: Example) -> Prompt:
        """The prompt as the user turn."""
        system = self.system_prompt or example.metadata.get("system_prompt")
        return tag_phases.prompt(system, self.few_shot, example.question)

    def score(self, example: Example, generations: Mapping[str, Generation]) -> dict[str, Any]:
        """What was answered; there is nothing to be right about."""
        extracted = answers.extract(generations)
        answer = extracted.text or answers.visible(extracted)
        return {"pred_answer": answer, "pred_answer_canon": None, "is_correct_pred": None}

    def _example(self, row: records.Record) -> Example:
        text = columns.need_text(row, self.columns, "prompt")
        metadata: dict[str, Any] = {}
        if columns.optional(row, self.columns, "system_prompt") is not None:
            metadata["system_prompt"] = columns.need_text(row, self.columns, "system_prompt")
        return Example(columns.own_id(row, self.columns), text, None, metadata)
