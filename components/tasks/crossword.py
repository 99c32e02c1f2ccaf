"""Cryptic crossword clues: one entry each, compared letter by letter.

A record of a data set; the enumeration may also stand at the end of the clue:

    {"clue": "Notes played as a rock", "answer": "stone", "enumeration": "5"}

`is_correct_pred`: the same letters, without case, accents, blanks, hyphens and the rest.
`fits_enumeration`: the prediction's words have the lengths of the enumeration. `fits_length`: their
sum is right. `is_correct_substring`: the rule of published tables, gold contained in prediction.
"""

import re
import time
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from components.data_sets import columns, records
from components.grading import answers
from components.grading.verdict import Verdict
from components.tasks import tag_phases
from components.tasks.questions import Questions
from pipeline.protocols import Example, Generation, Prompt

_BAKED_TAG = re.compile(r"\s*<think>\s*$", re.IGNORECASE)
_IN_CLUE = re.compile(r"\s*\(([\d\s,'\u2019.\-\u2013]*\d)\)\s*$")
_SPELLING = re.compile(r"[\d\s,;/'\u2019.\-\u2013()\[\]]+(?:words?)?", re.IGNORECASE)
_LIGATURES = str.maketrans(
    {"\u00e6": "ae", "\u0153": "oe", "\u00f8": "o", "\u0142": "l", "\u0111": "d", "\u00f0": "d"}
)


@dataclass(kw_only=True, eq=False)
class Crossword(Questions):
    """Task `crossword`; the arguments are the keys of `conf/task/crossword.yaml`."""

    FIELDS = ("id", "question", "answer", "enumeration")
    JUDGE = "letters"

    user_prompt: str

    def examples(self) -> Sequence[Example]:
        """All clues, in order."""
        return self._read("crossword.jsonl")

    def prompt(self, example: Example) -> Prompt:
        """System prompt, worked examples, then the clue with its enumeration in brackets."""
        enumeration = example.metadata.get("enumeration")
        clue = f"{example.question} ({enumeration})" if enumeration else example.question
        user = tag_phases.fill(self.user_prompt, {"clue": clue})
        return tag_phases.prompt(self.system_prompt, self.few_shot, user)

    def score(self, example: Example, generations: Mapping[str, Generation]) -> dict[str, Any]:
        """Pass fields: exact letters, fit to enumeration and length, and the substring rule."""
        extracted = answers.extract(generations)
        answer = extracted.text
        answered = bool(answer) and not extracted.unfinished
        fields: dict[str, Any] = {
            "pred_answer": answer,
            "pred_answer_canon": canonical(answer),
            "answer_status": "answered" if answered else extracted.missing_status,
            "is_correct_pred": None,
            "is_correct_substring": None,
            "fits_enumeration": None,
            "fits_length": None,
        }
        enumeration = example.metadata.get("enumeration")
        if enumeration is not None:
            fields["enumeration"] = enumeration
            wanted = word_lengths(enumeration)
            fields["fits_enumeration"] = answer_lengths(answer) == wanted
            fields["fits_length"] = len(letters(answer)) == sum(wanted)
        if example.target is not None:
            gold = canonical(example.target)
            fields["is_correct_pred"] = answered and same_entry(example.target, answer)
            fields["is_correct_substring"] = bool(gold) and gold in canonical(answer)
        return fields

    def grade(self, gold: Any, pred: str, row: Mapping[str, Any]) -> Verdict:
        """Compare two entries as `score` does; nothing else of the row matters."""
        started = time.monotonic()
        equal = same_entry(str(gold), pred)
        reason = f"letters {letters(pred) or 'none'} against {letters(str(gold))}"
        return Verdict(equal, "same letters" if equal else reason, time.monotonic() - started)

    def _example(self, row: records.Record) -> Example:
        clue = _BAKED_TAG.sub("", columns.need_text(row, self.columns, "question")).strip()
        gold = columns.need_text(row, self.columns, "answer").strip()
        if not canonical(gold):
            raise records.DataError(f"{row.where}: the answer must have letters, got {gold!r}")
        enumeration = _enumeration(row, columns.optional(row, self.columns, "enumeration"))
        in_clue = _IN_CLUE.search(clue)
        if in_clue:
            clue = clue[: in_clue.start()]
            enumeration = enumeration or in_clue[1]
        metadata = {"gold_answer_canon": canonical(gold), "enumeration": enumeration}
        return Example(columns.own_id(row, self.columns), clue, gold, metadata)


def canonical(text: str) -> str:
    """Lower-case a to z and 0 to 9 only, accents folded."""
    plain = unicodedata.normalize("NFKD", text.casefold().translate(_LIGATURES))
    return "".join(c for c in plain if "a" <= c <= "z" or "0" <= c <= "9")


def letters(text: str) -> str:
    """`canonical` without digits: an enumeration behind the entry does not count."""
    return re.sub(r"\d", "", canonical(text))


def same_entry(gold: str, pred: str) -> bool:
    """True when gold and prediction have the same letters (and digits, where gold has some)."""
    if re.search(r"\d", gold):
        return canonical(gold) == canonical(pred)
    return bool(letters(gold)) and letters(gold) == letters(pred)


def word_lengths(enumeration: str) -> list[int]:
    """Letters per word of an enumeration such as `5`, `3,4` or `3-3`.

    An apostrophe joins: `4'1` is a word of five letters.
    """
    joined = re.sub(r"(\d+)\s*['\u2019]\s*(\d+)", lambda m: str(int(m[1]) + int(m[2])), enumeration)
    return [int(number) for number in re.findall(r"\d+", joined)]


def answer_lengths(answer: str) -> list[int]:
    """Letters per word of an entry; hyphens part words, apostrophes do not."""
    bare = re.sub(r"\([\d\s,'\-]*\)\s*$", "", answer)
    words = re.split(r"[\s\-\u2010-\u2015_/,]+", bare)
    return [len(letters(word)) for word in words if letters(word)]


def _enumeration(row: records.Record, value: Any) -> str | None:
    """The data set's own spelling without outer brackets; a list is joined by commas."""
    if value is None:
        return None
    if isinstance(value, list | tuple) and all(
        type(item) is int or isinstance(item, str) for item in value
    ):
        value = ",".join(map(str, value))
    text = str(value).strip()
    if (
        isinstance(value, bool | float)
        or not re.search(r"\d", text)
        or not _SPELLING.fullmatch(text)
    ):
        raise records.DataError(
            f"{row.where}: the column of task.columns.enumeration must hold word lengths "
            f"such as 5, '3,4' or '3-3', got {value!r}"
        )
    return re.sub(r"^[(\[]\s*|\s*[)\]]$", "", text)
