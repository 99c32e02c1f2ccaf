"""Cryptic crossword clues: one entry each, compared letter by letter."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from components.tasks import records, tagged
from pipeline.protocols import Example, Generation, Prompt

FIELDS = ("id", "question", "answer", "enumeration")
_BAKED_TAG = re.compile(r"\s*<think>\s*$", re.IGNORECASE)


class Crossword:
    """Task `crossword`."""

    def __init__(
        self,
        name: str,
        data: Mapping[str, Any],
        columns: Mapping[str, Any],
        system_prompt: str | None,
        user_prompt: str,
        few_shot: Sequence[Mapping[str, str]] = (),
        tagged_phases: bool = True,
        think_cap: int = 750,
        answer_cap: int = 50,
        max_output_tokens: int = 900,
    ) -> None:
        """Cheap: nothing is read before `examples()`."""
        self.name = name
        self.source = records.source(data)
        records.check_columns(columns, FIELDS)
        self.columns = columns
        self.system_prompt = system_prompt
        self.user_prompt = user_prompt
        self.few_shot = few_shot
        self.phases = tagged.phases(tagged_phases, think_cap, answer_cap, max_output_tokens)
        self.max_output_tokens = max_output_tokens

    def examples(self) -> Sequence[Example]:
        """All clues, in order."""
        rows = records.load(self.source, "crossword.jsonl")
        return records.examples([self._example(row) for row in rows])

    def prompt(self, example: Example) -> Prompt:
        """System prompt, worked examples, then the clue with its enumeration in brackets."""
        enumeration = example.metadata.get("enumeration")
        clue = f"{example.question} ({enumeration})" if enumeration else example.question
        return tagged.prompt(
            self.system_prompt, self.few_shot, tagged.fill(self.user_prompt, {"clue": clue})
        )

    def score(self, example: Example, generations: Mapping[str, Generation]) -> dict[str, Any]:
        """Pass fields: exact letters, fit to enumeration and length, and the substring rule."""
        answer = tagged.find(generations).text
        pred = letters(answer)
        fields: dict[str, Any] = {
            "pred_answer": answer,
            "pred_answer_canon": pred,
            "is_correct_pred": None,
            "is_correct_substring": None,
        }
        enumeration = example.metadata.get("enumeration")
        if enumeration is not None:
            fields["enumeration"] = enumeration
        if example.target is not None:
            gold = letters(example.target)
            fields["is_correct_pred"] = bool(gold) and gold == pred
            fields["is_correct_substring"] = bool(gold) and gold in pred
        return fields

    def _example(self, row: records.Record) -> Example:
        clue = records.need_text(
            row, records.names_of(self.columns, "question"), "task.columns.question"
        )
        clue = _BAKED_TAG.sub("", clue).strip()
        gold = records.need_text(
            row, records.names_of(self.columns, "answer"), "task.columns.answer"
        )
        enumeration = records.pick(row, records.names_of(self.columns, "enumeration"))
        if isinstance(enumeration, list):
            enumeration = ",".join(map(str, enumeration))
        metadata = {
            "gold_answer_canon": letters(gold),
            "enumeration": None if enumeration is None else str(enumeration).strip("() "),
        }
        identity = records.own_id(row, records.names_of(self.columns, "id"))
        return Example(identity, clue, gold, metadata)


def letters(text: str) -> str:
    """Lower-case letters and digits only, accents folded."""
    plain = unicodedata.normalize("NFKD", text).casefold()
    return "".join(c for c in plain if "a" <= c <= "z" or "0" <= c <= "9")
