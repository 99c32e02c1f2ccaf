"""A task small enough to read in a test's failure message."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.protocols import Example, Generation, Message, Phase, Prompt

TAGGED = (
    Phase("think", 200, "<think>\n", ("</think>",), "</think>\n"),
    Phase("answer", 50, "<answer>\n", ("</answer>",), "</answer>"),
)


class ToyTask:
    """Asks to repeat a word; right when the answer begins with it."""

    name = "toy"
    max_output_tokens = 300

    def __init__(self, count: int = 6, phases: tuple[Phase, ...] = TAGGED) -> None:
        self.phases = phases
        self.count = count

    def examples(self) -> Sequence[Example]:
        words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]
        return [
            Example(f"toy-{i}", f"say {words[i % 8]} {i}", words[i % 8], {"length": i})
            for i in range(self.count)
        ]

    def prompt(self, example: Example) -> Prompt:
        return Prompt((Message("system", ("You repeat.",)), Message("user", (example.question,))))

    def score(self, example: Example, generations: Mapping[str, Generation]) -> dict[str, Any]:
        answer = generations["answer" if "answer" in generations else "output"].text.strip()
        right = answer.startswith(example.target)
        return {"pred_answer": answer, "pred_answer_canon": answer, "is_correct_pred": right}
