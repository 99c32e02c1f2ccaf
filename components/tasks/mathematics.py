"""Math problems with one answer each, graded for mathematical equality."""

from collections.abc import Mapping, Sequence
from typing import Any

from components.tasks import records, tagged
from components.tasks.math_grading.boxed import last_boxed
from components.tasks.math_grading.canonical import canonical, contains
from components.tasks.math_grading.pool import Pool
from pipeline.protocols import Example, Generation, Prompt

FIELDS = ("id", "question", "answer")


class Mathematics:
    """Task `math`."""

    def __init__(
        self,
        name: str,
        data: Mapping[str, Any],
        columns: Mapping[str, Any],
        system_prompt: str | None,
        user_prompt: str,
        few_shot: Sequence[Mapping[str, str]] = (),
        mirrors: Mapping[str, Sequence[str]] | None = None,
        answer_pattern: str | None = None,
        tagged_phases: bool = True,
        think_cap: int = 750,
        answer_cap: int = 50,
        max_output_tokens: int = 900,
        grading_seconds: float = 3.0,
        grading_workers: int | None = None,
    ) -> None:
        """Cheap: nothing is read before `examples()`."""
        self.name = name
        self.source = records.source(data, mirrors)
        records.check_columns(columns, FIELDS)
        self.columns = columns
        self.system_prompt = system_prompt
        self.user_prompt = user_prompt
        self.few_shot = few_shot
        self.answer_pattern = answer_pattern
        self.phases = tagged.phases(tagged_phases, think_cap, answer_cap, max_output_tokens)
        self.max_output_tokens = max_output_tokens
        self.pool = Pool(grading_workers, grading_seconds)

    def examples(self) -> Sequence[Example]:
        """All problems, in order."""
        rows = records.load(self.source, "math.jsonl")
        return records.examples([self._example(row) for row in rows])

    def prompt(self, example: Example) -> Prompt:
        """System prompt, worked examples, then the problem."""
        user = tagged.fill(self.user_prompt, {"question": example.question})
        return tagged.prompt(self.system_prompt, self.few_shot, user)

    def score(self, example: Example, generations: Mapping[str, Generation]) -> dict[str, Any]:
        """Pass fields: equality by math-verify, and the published substring rule beside it."""
        found = tagged.find(generations)
        boxed = last_boxed(found.text or found.whole)
        answer = found.text or boxed or ""
        status: tagged.AnswerStatus = "answered"
        if boxed is None and not (answer and found.closed):
            status = "truncated" if found.capped else "no_answer"
        canon = canonical(answer)
        fields: dict[str, Any] = {
            "pred_answer": answer,
            "pred_answer_canon": canon,
            "answer_status": status,
            "is_correct_pred": None,
            "is_correct_substring": None,
        }
        if example.target is not None:
            gold = str(example.target)
            fields["is_correct_substring"] = contains(canonical(gold), canon)
            fields["is_correct_pred"] = (
                status == "answered" and self.pool.grade(gold, boxed or answer).equal
            )
        return fields

    def _example(self, row: records.Record) -> Example:
        question = records.need_text(
            row, records.names_of(self.columns, "question"), "task.columns.question"
        )
        answers = records.names_of(self.columns, "answer")
        gold = records.need_text(row, answers, "task.columns.answer", numbers=True)
        identity = records.own_id(row, records.names_of(self.columns, "id"))
        return Example(identity, question, gold, {"gold_answer_canon": canonical(gold)})
