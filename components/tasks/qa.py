"""Questions of any data set, with answers that the grader named in `task.grader` compares.

A record of a data set, whose columns `task.columns` names:

    {"question": "What is the capital of France?", "answer": ["Paris", "paris"]}
    {"question": "Which is a fruit?", "answer": "B", "choices": ["granite", "apple"]}
"""

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from components.data_sets import columns, records
from components.grading import answers
from components.grading import text as text_grading
from components.grading.math.boxed import boxed_answer
from components.grading.math.pool import Pool
from components.grading.verdict import Verdict
from components.tasks import tag_phases
from components.tasks.questions import Questions
from pipeline.protocols import Example, Generation, Prompt
from pipeline.spec import require


@dataclass(kw_only=True, eq=False)
class QuestionAnswering(Questions):
    """Task `qa`; the arguments are the keys of `conf/task/qa.yaml`."""

    FIELDS = ("id", "question", "answer", "system_prompt", "choices")

    grader: str
    user_prompt: str
    answer_pattern: str | None = None
    tagged_phases: bool = False
    max_output_tokens: int = 512
    grading_seconds: float = 3.0
    embedded: str = "qa.jsonl"

    def __post_init__(self) -> None:
        """Check the grader's name; make the pattern, and the pool that grades mathematics."""
        Questions.__post_init__(self)
        graders = sorted([*text_grading.GRADERS, "math"])
        require(self.grader in graders, "task.grader", f"be one of {graders}", self.grader)
        self._pattern = text_grading.answer_pattern(self.answer_pattern)
        self.pool = Pool(None, self.grading_seconds)

    def examples(self) -> Sequence[Example]:
        """All questions, in order."""
        return self._read(self.embedded)

    def prompt(self, example: Example) -> Prompt:
        """The system prompt, worked examples, then the question with its choices.

        `task.system_prompt` replaces the row's own.
        """
        system = self.system_prompt or example.metadata.get("system_prompt")
        choices = example.metadata.get("choices") or ()
        lines = [
            f"{letter}. {text}"
            for letter, text in zip(string.ascii_uppercase, choices, strict=False)
        ]
        values = {"question": example.question, "choices": "\n".join(lines)}
        user = tag_phases.fill(self.user_prompt, values).strip()
        if lines and "{choices}" not in self.user_prompt:
            user = "\n".join([user, *lines])
        return tag_phases.prompt(system, self.few_shot, user)

    def score(self, example: Example, generations: Mapping[str, Generation]) -> dict[str, Any]:
        """Pass fields: the answer found, and the grader's verdict (None without gold)."""
        extracted = answers.extract(generations)
        answer = self._answer(extracted)
        answered = bool(answer) and not extracted.unfinished
        fields: dict[str, Any] = {
            "pred_answer": answer,
            "pred_answer_canon": text_grading.normal(answer),
            "answer_status": "answered" if answered else extracted.missing_status,
            "is_correct_pred": None,
        }
        if example.target is not None:
            fields["is_correct_pred"] = False
            golds = example.target if isinstance(example.target, list) else [example.target]
            for gold in golds if answered else ():
                verdict = self.grade(gold, answer, example.metadata)
                if verdict.limit is not None:
                    fields["grading"] = verdict.limit
                if verdict.equal:
                    fields["is_correct_pred"] = True
                    break
        return fields

    def grade(self, gold: Any, pred: str, row: Mapping[str, Any]) -> Verdict:
        """Compare two answers as `score` does; the row's `choices` are the texts behind letters."""
        if self.grader == "math":
            return self.pool.grade(str(gold), boxed_answer(pred) or pred)
        return text_grading.grade(self.grader, str(gold), pred, row.get("choices") or ())

    def _answer(self, extracted: answers.ExtractedAnswer) -> str:
        text = extracted.text or answers.visible(extracted)
        if self._pattern is None:
            return text
        try:
            matches = list(self._pattern.finditer(text, timeout=text_grading.REGEX_SECONDS))
        except TimeoutError:
            return ""
        return str(matches[-1][1] or "").strip() if matches else ""

    def _example(self, row: records.Record) -> Example:
        metadata: dict[str, Any] = {}
        system = columns.optional(row, self.columns, "system_prompt")
        if system is not None:
            metadata["system_prompt"] = columns.need_text(row, self.columns, "system_prompt")
        choices = columns.optional(row, self.columns, "choices")
        if choices is not None:
            metadata["choices"] = _choices(row, choices)
        question = columns.need_text(row, self.columns, "question")
        gold = self._gold(row) if columns.names_of(self.columns, "answer") else None
        if gold is not None and self.grader == "regex":
            _check_gold_pattern(row, gold)
        return Example(columns.own_id(row, self.columns), question, gold, metadata)

    def _gold(self, row: records.Record) -> str | list[str]:
        """One answer, or a list of which any counts."""
        value = columns.need(row, self.columns, "answer")
        if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
            return [columns.encodable(row, "task.columns.answer", item) for item in value]
        return columns.need_text(row, self.columns, "answer", numbers=True)


def _choices(row: records.Record, value: Any) -> list[str]:
    """A list of texts, or the hub's mapping with a `text` list."""
    if isinstance(value, Mapping) and "text" in value:
        value = value["text"]
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return [columns.encodable(row, "task.columns.choices", item) for item in value]
    rule = "the column of task.columns.choices must hold a list of texts"
    raise records.DataError(f"{row.where}: {rule}, got {value!r}")


def _check_gold_pattern(row: records.Record, gold: str | list[str]) -> None:
    for text in [gold] if isinstance(gold, str) else gold:
        try:
            re.compile(text)
        except re.error as error:
            raise records.DataError(
                f"{row.where}: the answer is no regular expression: {error}"
            ) from error
