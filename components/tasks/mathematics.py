r"""Math problems with one answer each, graded for mathematical equality.

What counts as the answer: the answer tag's text, else the last balanced `\boxed{}`, else none (with
`last_number`, the last number of an uncut output). `answer_status` is `answered`; `truncated` when
a cap cut the pass before a whole answer came; `no_answer` otherwise. Only answered passes can be
right; a box inside the tag is the answer within the tag.

What counts as equal (`is_correct_pred`), kind by kind:

- numbers: exact, of any size; a decimal means exactly what it says, so no rounded root, fraction or
  pi is equal;
- formulas: equal values, with the same variables; capital and small letters are different ones;
- `\mathrm{e}`, `\mathrm{i}`: the constants e and i;
- percent: the sign may be left out, or the percentage written as a number: 50\% is 50 and 0.5, but
  0.5\% is never 0.5;
- units, currency, degrees: may be left out; when both sides name one, it must be the same one, and
  nothing is converted;
- bases: base and digits must agree; a base left out or added is wrong, except base ten;
- tuples, intervals: order and brackets count; a tuple may lack its round brackets, in order;
- bare lists, sets: any order, nothing missing, nothing twice; `\pm` is both signs;
- column vectors: equal to the tuple of their entries; a row is not a column;
- equations: up to a constant factor; `x = 5` is 5, but `x = 5` is not `y = 5`;
- inequalities: up to a positive factor; in one variable, the interval that they describe;
- words: without case, blanks and punctuation; `\text{(B)}` is B.

Longer than 2,000 characters, unreadable, or too slow (hard limit, `grading_seconds`): different.
`is_correct_substring` keeps the rule of published tables: canonical gold contained in canonical
prediction.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from components.data_sets import columns, records
from components.grading import answers
from components.grading import text as text_grading
from components.grading.math.boxed import last_boxed
from components.grading.math.canonical import canonical, contains
from components.grading.math.pool import Pool
from components.grading.verdict import Verdict
from components.tasks import tag_phases
from components.tasks.questions import Questions
from pipeline.protocols import Example, Generation, Prompt


@dataclass(kw_only=True, eq=False)
class Mathematics(Questions):
    """Task `math` and its relatives; the arguments are the keys of `conf/task/math.yaml`."""

    FIELDS = ("id", "question", "answer")

    user_prompt: str
    answer_pattern: str | None = None
    last_number: bool = False
    grading_seconds: float = 3.0
    grading_workers: int | None = None

    def __post_init__(self) -> None:
        """Make the pattern, and the pool that grades."""
        Questions.__post_init__(self)
        self._pattern = text_grading.answer_pattern(self.answer_pattern)
        self.pool = Pool(self.grading_workers, self.grading_seconds)

    def examples(self) -> Sequence[Example]:
        """All problems, in order."""
        rows = records.load(self.source, "math.jsonl")
        return records.examples([self._example(row) for row in rows])

    def prompt(self, example: Example) -> Prompt:
        """System prompt, worked examples, then the problem."""
        user = tag_phases.fill(self.user_prompt, {"question": example.question})
        return tag_phases.prompt(self.system_prompt, self.few_shot, user)

    def score(self, example: Example, generations: Mapping[str, Generation]) -> dict[str, Any]:
        """Pass fields: equality by math-verify, and the published substring rule beside it."""
        found = answers.find(generations)
        boxed = last_boxed(found.text or found.whole)
        answer = found.text or boxed or self._number(found)
        status: answers.AnswerStatus = "answered"
        if not boxed and not (answer and (found.closed or not found.text)):
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

    def grade(self, gold: Any, pred: str, row: Mapping[str, Any]) -> Verdict:
        """Compare two answers as `score` does; nothing else of the row matters."""
        return self.pool.grade(str(gold), last_boxed(pred) or pred)

    def _number(self, found: answers.Found) -> str:
        if not self.last_number or found.capped:
            return ""
        number = text_grading.last_number(answers.visible(found))
        return "" if number is None else str(number)

    def _example(self, row: records.Record) -> Example:
        question = columns.need_text(row, self.columns, "question")
        gold = self._gold(row, columns.need_text(row, self.columns, "answer", numbers=True))
        metadata = {"gold_answer_canon": canonical(gold)}
        return Example(columns.own_id(row, self.columns), question, gold, metadata)

    def _gold(self, row: records.Record, cell: str) -> str:
        """The answer in a cell: what `answer_pattern` finds.

        Else the box of a worked solution, else all of it.
        """
        if self._pattern is None:
            return last_boxed(cell) or cell.strip()
        matches = list(self._pattern.finditer(cell))
        if not matches:
            pattern = self._pattern.pattern
            raise records.DataError(
                f"{row.where}: task.answer_pattern {pattern!r} finds nothing in {cell!r}"
            )
        return str(matches[-1][1]).strip()
