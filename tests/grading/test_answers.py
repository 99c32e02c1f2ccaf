"""Where the answer of a pass is, and whether a limit on length cut it."""

import pytest

from components.grading.answers import extract
from pipeline.protocols import FinishReason, Generation


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
