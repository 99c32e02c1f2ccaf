"""Finds the answer in what a model wrote.

Reasoning ends with `</think>`, or is what stands outside of the channel `final` (gpt-oss).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from components.decoding import harmony
from pipeline.protocols import Generation

AnswerStatus = Literal["answered", "no_answer", "truncated"]

THINK, ANSWER, OUTPUT = "think", "answer", "output"
_OPENING = re.compile(r"<answer>", re.IGNORECASE)
_CLOSING = re.compile(r"</answer>", re.IGNORECASE)
_THINK_TAG = re.compile(r"<(/?)think>", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ExtractedAnswer:
    """The answer block of one pass.

    `text` is its stripped text, empty where there is none; `closed` says that it was written to its
    end. `output` is everything the model wrote, with think tags around reasoning that came in a
    channel. `cut` says that a phase ended before the model did. `unfinished` says that the output
    was cut inside its reasoning or inside an open answer block: whatever stands before the cut, a
    box for example, is not the answer.
    """

    text: str
    closed: bool
    cut: bool
    unfinished: bool
    output: str

    @property
    def missing_status(self) -> AnswerStatus:
        """The `answer_status` of a pass without an answer."""
        return "truncated" if self.cut else "no_answer"


def extract(generations: Mapping[str, Generation]) -> ExtractedAnswer:
    """The answer of one pass: its answer phase, or the first answer block of a single phase."""
    cut = any(generation.truncated for generation in generations.values())
    if ANSWER not in generations:
        return _from_output(generations[OUTPUT], cut)
    answer = generations[ANSWER]
    think = generations[THINK].text if THINK in generations else ""
    closed = not answer.truncated
    return ExtractedAnswer(answer.text.strip(), closed, cut, not closed, f"{think}\n{answer.text}")


def _from_output(generation: Generation, cut: bool) -> ExtractedAnswer:
    output = _with_think_tags(generation.spelled, cut)
    opening = _OPENING.search(output)
    closing = _CLOSING.search(output, opening.end()) if opening else None
    if opening and closing:
        text = output[opening.end() : closing.start()].strip()
        return ExtractedAnswer(text, True, cut, False, output)
    if opening and generation.finish_reason == "stop_token":  # the stop string may be left out
        return ExtractedAnswer(output[opening.end() :].strip(), True, cut, False, output)
    unfinished = cut and (opening is not None or _thinking(output))
    return ExtractedAnswer("", False, cut, unfinished, output)


def _with_think_tags(text: str, cut: bool) -> str:
    """A text in channels as one with a think block, which a cut before the answer leaves open."""
    channels = harmony.channels(text)
    if channels is None:
        return text
    begun = f"<think>\n{channels.reasoning}"
    return begun if cut and channels.final is None else f"{begun}\n</think>\n{channels.final or ''}"


def _thinking(output: str) -> bool:
    """True when the last think tag of the output opens a block."""
    tags = _THINK_TAG.findall(output)
    return bool(tags) and tags[-1] == ""


def visible(answer: ExtractedAnswer) -> str:
    """The text after the last think block: what a reader takes as the answer without a tag."""
    return re.split(r"</think>", answer.output, flags=re.IGNORECASE)[-1].strip()
