"""Plain prompts without gold: a text file with one a line, a JSONL file, or texts in the config."""

from collections.abc import Mapping, Sequence
from typing import Any

from components.tasks import records, tagged
from pipeline.protocols import Example, Generation, Prompt
from pipeline.spec import SpecError

FIELDS = ("id", "prompt", "system_prompt")


class Prompts:
    """Task `prompts`; the arguments are the keys of `conf/task/prompts.yaml`."""

    def __init__(
        self,
        name: str,
        data: Mapping[str, Any],
        columns: Mapping[str, Any],
        system_prompt: str | None,
        texts: Sequence[str] = (),
        few_shot: Sequence[Mapping[str, str]] = (),
        tagged_phases: bool = False,
        think_cap: int = 750,
        answer_cap: int = 50,
        max_output_tokens: int = 100,
    ) -> None:
        self.name = name
        self.source = records.source(data)
        records.check_columns(columns, FIELDS)
        self.columns = columns
        self.system_prompt = system_prompt
        self.texts = texts
        self.few_shot = few_shot
        self.phases = tagged.phases(tagged_phases, think_cap, answer_cap, max_output_tokens)
        self.max_output_tokens = max_output_tokens
        if texts and (self.source.path is not None or self.source.hub is not None):
            raise SpecError("task.texts must be empty when task.data names a path or a hub id")

    def examples(self) -> Sequence[Example]:
        """All prompts, in order."""
        if self.texts:
            rows = [
                records.Record({"text": t}, f"task.texts[{i}]") for i, t in enumerate(self.texts)
            ]
        else:
            rows = records.load(self.source, "prompts.jsonl")
        return records.examples([self._example(row) for row in rows])

    def prompt(self, example: Example) -> Prompt:
        """The prompt as the user turn."""
        system = self.system_prompt or example.metadata.get("system_prompt")
        return tagged.prompt(system, self.few_shot, example.question)

    def score(self, example: Example, generations: Mapping[str, Generation]) -> dict[str, Any]:
        """What was answered; there is nothing to be right about."""
        found = tagged.find(generations)
        answer = found.text or tagged.visible(found)
        return {"pred_answer": answer, "pred_answer_canon": None, "is_correct_pred": None}

    def _example(self, row: records.Record) -> Example:
        text = records.need_text(row, self.columns, "prompt")
        metadata: dict[str, Any] = {}
        if records.optional(row, self.columns, "system_prompt") is not None:
            metadata["system_prompt"] = records.need_text(row, self.columns, "system_prompt")
        return Example(records.own_id(row, self.columns), text, None, metadata)
