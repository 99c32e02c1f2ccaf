"""Finds the answer in what a model wrote."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pipeline.protocols import Generation

AnswerStatus = Literal["answered", "no_answer", "truncated"]


THINK, ANSWER, OUTPUT = "think", "answer", "output"
_ANSWER_BLOCK = re.compile(r"<answer>(.*?)</answer>", re.IGNORECASE | re.DOTALL)


_ANSWER_OPEN = re.compile(r"<answer>", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Found:
    """The answer block of one pass.

    Its stripped text, whether it was closed, and everything the model wrote.
    """

    text: str
    closed: bool
    capped: bool  # a phase ended at its cap
    whole: str


def find(generations: Mapping[str, Generation]) -> Found:
    """The answer of one pass.

    From its answer phase or from the first answer block of a single phase.
    """
    capped = any(g.truncated for g in generations.values())
    if ANSWER in generations:
        answer = generations[ANSWER]
        think = generations[THINK].text if THINK in generations else ""
        whole = f"{think}\n{answer.text}"
        return Found(answer.text.strip(), not answer.truncated, capped, whole)
    output = generations[OUTPUT]
    text = output.spelled
    block = _ANSWER_BLOCK.search(text)
    if block:
        return Found(block.group(1).strip(), True, capped, text)
    opened = _ANSWER_OPEN.search(text)
    if opened and output.finish_reason == "stop_token":  # the stop string itself may be left out
        return Found(text[opened.end() :].strip(), True, capped, text)
    return Found("", False, capped, text)


def visible(found: Found) -> str:
    """What a reader takes as the answer where no tag holds one.

    The text after the last closed think block.
    """
    return re.split(r"</think>", found.whole, flags=re.IGNORECASE)[-1].strip()
