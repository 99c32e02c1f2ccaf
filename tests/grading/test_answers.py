"""Where the answer of a pass is, and whether a limit on length cut it."""

import time

import pytest

from components.grading.answers import extract, visible
from pipeline.protocols import Example, FinishReason, Generation
from tests.fakes.tasks import task

ANALYSIS = r"<|channel|>analysis<|message|>Perhaps \boxed{54}? No, 7*8 is 56."
FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>"


@pytest.mark.parametrize(
    ("reason", "cut"),
    [("max_new_tokens", True), ("max_context", True), ("eos", False), ("other", False)],
)
def test_the_cap_and_the_end_of_the_context_both_cut_an_answer(
    reason: FinishReason, cut: bool
) -> None:
    think = Generation([1], "so", "stop_token", tail="</think>")
    answer = extract({"think": think, "answer": Generation([2], "4", reason)})
    assert (answer.cut, answer.closed) == (cut, not cut)
    assert extract({"output": Generation([2], "<answer>4", reason)}).cut == cut


@pytest.mark.parametrize(
    ("text", "reason", "answer", "status", "right"),
    [
        (ANALYSIS + FINAL + r"\boxed{56}", "eos", "56", "answered", True),
        (ANALYSIS + FINAL + "<answer>56</answer>", "eos", "56", "answered", True),
        (ANALYSIS + FINAL + r"\boxed{54}", "eos", "54", "answered", False),
        (ANALYSIS, "max_new_tokens", "54", "truncated", False),
        (ANALYSIS + "<|end|>", "max_new_tokens", "54", "truncated", False),
        (r"analysisWe try \boxed{54}.assistantfinal\boxed{56}", "eos", "56", "answered", True),
        (r"analysisWe try \boxed{56}.", "max_context", "56", "truncated", False),
    ],
)
def test_the_final_channel_is_the_answer_and_a_cut_before_it_truncates(
    text: str, reason: FinishReason, answer: str, status: str, right: bool
) -> None:
    math = task("math", tagged_phases=False)
    example = Example("seven", "What is 7 * 8?", "56")
    fields = math.score(example, {"output": Generation([1], text, reason)})
    assert fields["pred_answer"] == answer
    assert (fields["answer_status"], fields["is_correct_pred"]) == (status, right)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (ANALYSIS + FINAL + "It is 56.", "It is 56."),
        (ANALYSIS + "<|end|>", ""),
        ("<think>so</think> It is 56.", "It is 56."),
        ("It is 56.", "It is 56."),
    ],
)
def test_what_a_reader_sees_is_all_but_the_reasoning(text: str, shown: str) -> None:
    assert visible(extract({"output": Generation([1], text, "eos")})) == shown


@pytest.mark.parametrize("reason", ["max_new_tokens", "eos", "stop_token"])
@pytest.mark.parametrize(
    "piece",
    ["<answer>", "<answer>4 ", "</answer>", "<think>", "<|channel|>", "<|channel|>a<|message|>"],
)
def test_a_megabyte_of_tags_that_nothing_closes_is_read_in_a_second(
    piece: str, reason: FinishReason
) -> None:
    text = piece * (1_000_000 // len(piece))
    begun = time.monotonic()
    visible(extract({"output": Generation([1], text, reason)}))
    assert time.monotonic() - begun < 1
