"""A model judges answers: each example is an answer of another run, put into the judge's prompt.

A record of a data set, whose columns `task.columns` names; rows of a run are such records too:

    {"question": "Name a gas.", "response": "Neon", "reference": "Argon, or any other gas."}

The prompt is data, in conf/task/judge/. `{question}`, `{response}` and `{reference}` in it are
replaced once, so that braces in a text stay what they are. What the judge must write at the end is
what `reading` looks for; the last one counts, as the judge may quote the answer before it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from components.data_sets import columns, records
from components.grading import answers
from components.tasks import tag_phases
from components.tasks.questions import Questions
from pipeline.protocols import Example, Generation, Prompt
from pipeline.spec import require

LONGEST_QUESTION = 2000  # characters of a question that a judge writes
MOST_QUESTIONS = 20
COUNTS = ("supported", "unsupported", "missing")
_SIGNS = r"[\s*_`\"'(\[]{0,8}[:=][\s*_`\"'(\[]{0,8}"  # between a word and its number
_RATING = re.compile(rf"rating{_SIGNS}(-?\d{{1,6}}(?:\.\d{{1,6}})?)(?!\.?\d)", re.IGNORECASE)
_BARE = re.compile(r"-?\d{1,6}(?:\.\d{1,6})?")
_COUNTS = {
    name: re.compile(rf"(?<![a-z]){name}{_SIGNS}(\d{{1,6}})(?!\d)", re.IGNORECASE)
    for name in COUNTS
}
_QUESTION = re.compile(
    r"^[\s*_\-\d.]{0,8}question[\s*_\d]{0,8}:(.+)$", re.IGNORECASE | re.MULTILINE
)
_EVASIVE = re.compile(rf"evasive{_SIGNS}(yes|no)\b", re.IGNORECASE)


@dataclass(kw_only=True, eq=False)
class Judge(Questions):
    """Tasks `judge/...`; the arguments are the keys of the YAMLs in `conf/task/judge/`.

    `reading` says what a judgement ends with: `rating`, a number on the scale `rating` that becomes
    0 to 1; `claims`, the numbers of claims `supported`, `unsupported` and `missing`, whose F1 is
    the score; `questions`, questions that the answer would answer, which are compared with the
    question afterwards (`launch/score_text.py`).
    """

    FIELDS = ("id", "question", "response", "reference")

    user_prompt: str
    reading: str
    rating: Sequence[float] = (0, 1)
    tagged_phases: bool = False
    max_output_tokens: int = 512
    embedded: str = "judge.jsonl"

    def __post_init__(self) -> None:
        """Check how judgements are read."""
        Questions.__post_init__(self)
        readings = sorted(READINGS)
        require(self.reading in readings, "task.reading", f"be one of {readings}", self.reading)
        ends = list(self.rating)
        two = len(ends) == 2 and all(isinstance(end, int | float) for end in ends)
        rule = "hold two numbers, the worst rating and a larger one"
        require(two and ends[0] < ends[1], "task.rating", rule, self.rating)
        rule = "hold the place {response}"
        require("{response}" in self.user_prompt, "task.user_prompt", rule, self.user_prompt)

    def examples(self) -> Sequence[Example]:
        """All answers to be judged, in order."""
        return self._read(self.embedded)

    def prompt(self, example: Example) -> Prompt:
        """The judge's prompt with question, response and reference in their places."""
        response = example.metadata["response"]
        values = {"question": example.question, "response": response, "reference": example.target}
        user = tag_phases.fill(self.user_prompt, values).strip()
        return tag_phases.prompt(self.system_prompt, self.few_shot, user)

    def score(self, example: Example, generations: Mapping[str, Generation]) -> dict[str, Any]:
        """Pass fields: what was read (`judgement`), and its `judge_score` from 0 to 1."""
        extracted = answers.extract(generations)
        text = extracted.text or answers.visible(extracted)
        found = None if extracted.unfinished else READINGS[self.reading](text, self.rating)
        judgement, score = found or (None, None)
        return {
            "pred_answer": "" if judgement is None else json.dumps(judgement, ensure_ascii=False),
            "pred_answer_canon": None,
            "answer_status": extracted.missing_status if judgement is None else "answered",
            "is_correct_pred": None,
            "judgement": judgement,
            "judge_score": score,
        }

    def _example(self, row: records.Record) -> Example:
        question = columns.optional(row, self.columns, "question")
        response = columns.need(row, self.columns, "response")
        reference = None
        if "{reference}" in self.user_prompt:
            reference = _text(row, "reference", columns.need(row, self.columns, "reference"))
        asked = "" if question is None else _text(row, "question", question)
        judged = {"response": _text(row, "response", response)}
        return Example(columns.own_id(row, self.columns), asked, reference, judged)


def _text(row: records.Record, field: str, value: Any) -> str:
    """A column as text: lists of texts a line each, other values as JSON writes them."""
    several = isinstance(value, list) and all(isinstance(item, str) for item in value)
    plain = "\n".join(value) if several else value
    text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, default=str)
    return columns.encodable(row, f"task.columns.{field}", text)


Read = tuple[Any, float | None] | None  # the judgement and its score, or nothing that can be read


def rating(text: str, scale: Sequence[float]) -> Read:
    """The last `Rating: n`, or a number that stands alone; None outside of the scale."""
    found = _RATING.findall(text) or ([text] if _BARE.fullmatch(text) else [])
    if not found:
        return None
    worst, best = scale
    value = float(found[-1])
    return (value, (value - worst) / (best - worst)) if worst <= value <= best else None


def claims(text: str, scale: Sequence[float]) -> Read:
    """The last `Supported: n`, `Unsupported: n` and `Missing: n`, and the F1 of these claims."""
    found = {name: pattern.findall(text) for name, pattern in _COUNTS.items()}
    if not all(found.values()):
        return None
    counts = {name: int(numbers[-1]) for name, numbers in found.items()}
    right = 2 * counts["supported"]
    whole = right + counts["unsupported"] + counts["missing"]
    return (counts, right / whole) if whole else None


def questions(text: str, scale: Sequence[float]) -> Read:
    """Every line `Question: ...`; an answer that says `Evasive: yes` of scores 0 whatever they are.

    Otherwise they have no score yet.
    """
    found = [question.strip(" *_\t\r")[:LONGEST_QUESTION] for question in _QUESTION.findall(text)]
    asked = [question for question in found if question][:MOST_QUESTIONS]
    evasive = [word.lower() for word in _EVASIVE.findall(text)][-1:] == ["yes"]
    return (asked, 0.0 if evasive else None) if asked or evasive else None


READINGS = {"rating": rating, "claims": claims, "questions": questions}
