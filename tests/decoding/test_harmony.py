"""Channels of gpt-oss are told apart, with and without their special tokens."""

import pytest

from components.decoding.harmony import Channels, channels

ANALYSIS = "<|channel|>analysis<|message|>7*8 is 56"
FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>It is 56."


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (ANALYSIS + FINAL, Channels("7*8 is 56", "It is 56.")),
        (ANALYSIS + FINAL + "<|return|>", Channels("7*8 is 56", "It is 56.")),
        (ANALYSIS, Channels("7*8 is 56", None)),
        (ANALYSIS + "<|end|>", Channels("7*8 is 56", None)),
        (ANALYSIS + "<|end|><|start|>assistant<|chan", Channels("7*8 is 56", None)),
        (ANALYSIS + FINAL.removesuffix("It is 56."), Channels("7*8 is 56", "")),
        ("analysis<|message|>7*8 is 56" + FINAL, Channels("7*8 is 56", "It is 56.")),
        ("<|channel|>final<|message|>56", Channels("", "56")),
        (
            "<|channel|>commentary to=tool <|constrain|>json<|message|>{}<|call|>",
            Channels("{}", None),
        ),
        ("analysisWe need 7*8.assistantfinal56", Channels("We need 7*8.", "56")),
        ("analysis7*8 is 56assistantfinal56", Channels("7*8 is 56", "56")),
        ("analysisWe need", Channels("We need", None)),
        ("<think>so</think>56", None),
        ("analysis of the final channel", None),
        ("The final answer is 56.", None),
    ],
)
def test_reasoning_and_answer_of_a_text(text: str, parts: Channels | None) -> None:
    assert channels(text) == parts
