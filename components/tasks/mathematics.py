r"""Math problems with one answer each, graded for mathematical equality.

A record of a data set, whose answer may also be a worked solution with a box:

    {"problem": "What is half of 5?", "answer": "\\frac{5}{2}"}

What counts as the answer: the answer tag's text, else the last balanced `\boxed{}` (boxes that only
a comma, `and` or `or` parts make one answer), else none (with `last_number`, the last number of an
uncut output). `answer_status` is `answered`; `truncated` when a cap or the context's end cut the
pass before an answer came, inside its reasoning, or inside an open answer; `no_answer` otherwise.
Only answered passes can be right; a box inside the tag is the answer within the tag.

What counts as equal (`is_correct_pred`), kind by kind:

- spelling does not matter: Markdown, dollar signs, Unicode signs, `sqrt(x)`, `7*sin(pi*x/5)`,
  `the answer is 5.`, `3 million` and `seven` are read as the LaTeX that they stand for;
- numbers: exact, of any size; a decimal means exactly what it says, so no rounded root, fraction or
  pi is equal; `0.\overline{3}`, `0.(3)` and `0.333...` are one third;
- formulas: equal values, with the same variables; capital and small letters are different ones;
  an odd root of a real number may be its real one, so that `x^{2/3}` is `\sqrt[3]{x^2}`;
- `\mathrm{e}`, `\mathrm{i}`: the constants e and i;
- angles: `\sin 30^\circ` takes degrees and `\sin 30` radians; elsewhere the degree is a unit;
- percent: the sign may be left out, or the percentage written as a number: 50\% is 50 and 0.5, but
  0.5\% is never 0.5;
- units, currency, degrees, `\pmod{10}`: may be left out; when both sides name one, it must be the
  same one, and nothing is converted; those of `6 hours and 30 minutes` may not be left out;
- ratios: `2:3`, `2 to 3` and 4:6 are one; what may be a time of day (`10:25`) counts as written;
- bases: base and digits must agree; a base left out or added is wrong, except base ten;
- tuples, intervals: order and brackets count; a tuple may lack its round brackets, in order;
- bare lists, sets: any order, nothing missing, nothing twice; `\pm` is both signs; a list that goes
  on with dots has an order; a set given by a rule has the same elements under the same condition;
- column vectors: equal to the tuple of their entries; a row is not a column, but transposed it is;
- matrices: entry by entry, a factor in front multiplied in; a determinant is its value;
- functions in branches: the same values under the same conditions, in any order;
- equations: up to a constant factor; a lone name on one side (`x`, `a_1`, `f(x)`, `|AB|`, words, a
  tuple of names) may be left out, so `x = 5` is 5, but it is not `y = 5`, and neither `2x = 5` nor
  `x + y = 5` is 5; a true sum is its value: `2 + 4 = 6` is 6;
- inequalities: up to a positive factor; in one variable, the interval that they describe, also when
  joined by `or` (a union) and `and` (between two bounds), as `x \ne 3` and as a set by its rule;
- choices: `(B)` is B, and `(B) 12` is B as well as 12;
- words: without case, blanks, punctuation and a leading article; `no solution` is the empty set.

Longer than 2,000 characters or unreadable: different. Too slow (`grading_seconds`), too large or a
crash of the grader: different, and the pass says so in `grading` (`timeout`, `memory`, `crash`).
`is_correct_substring` keeps the rule of published tables: canonical gold contained in canonical
prediction.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from components.data_sets import columns, records
from components.grading import answers
from components.grading import text as text_grading
from components.grading.math.boxed import boxed_answer
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
    JUDGE = "equality of values"

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
        return self._read("math.jsonl")

    def prompt(self, example: Example) -> Prompt:
        """System prompt (told the cap of the first phase), worked examples, then the problem."""
        user = tag_phases.fill(self.user_prompt, {"question": example.question})
        system = tag_phases.fill(self.system_prompt or "", {"think_cap": self.phases[0].cap})
        return tag_phases.prompt(system, self.few_shot, user)

    def score(self, example: Example, generations: Mapping[str, Generation]) -> dict[str, Any]:
        """Pass fields: equality by math-verify, and the published substring rule beside it."""
        extracted = answers.extract(generations)
        boxed = boxed_answer(extracted.text or extracted.output)
        answer = extracted.text or boxed or self._number(extracted)
        answered = bool(boxed or answer) and not extracted.unfinished
        canon = canonical(answer)
        fields: dict[str, Any] = {
            "pred_answer": answer,
            "pred_answer_canon": canon,
            "answer_status": "answered" if answered else extracted.missing_status,
            "is_correct_pred": None,
            "is_correct_substring": None,
        }
        if example.target is not None:
            gold = str(example.target)
            fields["is_correct_substring"] = contains(canonical(gold), canon)
            verdict = self.pool.grade(gold, boxed or answer) if answered else None
            fields["is_correct_pred"] = verdict is not None and verdict.equal
            if verdict is not None and verdict.limit is not None:
                fields["grading"] = verdict.limit
        return fields

    def grade(self, gold: Any, pred: str, row: Mapping[str, Any]) -> Verdict:
        """Compare two answers as `score` does; the gold may be a worked solution, as in data."""
        wanted = self._worked(str(gold))
        answer = str(gold).strip() if wanted is None else wanted
        return self.pool.grade(answer, boxed_answer(pred) or pred)

    def _number(self, extracted: answers.ExtractedAnswer) -> str:
        if not self.last_number or extracted.cut:
            return ""
        number = text_grading.last_number(answers.visible(extracted))
        return "" if number is None else str(number)

    def _example(self, row: records.Record) -> Example:
        question = columns.need_text(row, self.columns, "question")
        gold = self._gold(row, columns.need_text(row, self.columns, "answer", numbers=True))
        metadata = {"gold_answer_canon": canonical(gold)}
        return Example(columns.own_id(row, self.columns), question, gold, metadata)

    def _gold(self, row: records.Record, cell: str) -> str:
        """The answer in a cell of the data set. DataError where `answer_pattern` finds none."""
        answer = self._worked(cell)
        if answer is None and self._pattern is not None:
            pattern = self._pattern.pattern
            raise records.DataError(
                f"{row.where}: task.answer_pattern {pattern!r} finds nothing in {cell!r}"
            )
        return cell.strip() if answer is None else answer

    def _worked(self, solution: str) -> str | None:
        """The answer that `answer_pattern` finds in a worked solution, without one its box."""
        if self._pattern is None:
            return boxed_answer(solution)
        matches = list(self._pattern.finditer(solution))
        return str(matches[-1][1]).strip() if matches else None
