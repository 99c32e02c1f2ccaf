"""What tasks with think and answer tags share: their phases, and prompts with worked examples."""

import re
from collections.abc import Mapping, Sequence

from components.grading.answers import ANSWER, OUTPUT, THINK
from pipeline.protocols import Message, Phase, Prompt


def phases(
    tagged: bool, think_cap: int, answer_cap: int, max_output_tokens: int
) -> tuple[Phase, ...]:
    """A think and an answer phase with forced tags, or one phase that the model fills itself."""
    if not tagged:
        return (Phase(OUTPUT, max_output_tokens),)
    think = Phase(THINK, think_cap, "<think>\n", ("</think>",), "</think>\n")
    answer = Phase(ANSWER, answer_cap, "<answer>\n", ("</answer>",), "</answer>")
    return think, answer


def prompt(system: str | None, shots: Sequence[Mapping[str, str]], user: str) -> Prompt:
    """Chat messages: the system prompt, the shots' `user` and `assistant` turns, the question."""
    messages = [Message("system", (system.strip(),))] if system and system.strip() else []
    for shot in shots:
        messages.append(Message("user", (shot["user"],)))
        messages.append(Message("assistant", (shot["assistant"],)))
    messages.append(Message("user", (user,)))
    return Prompt(tuple(messages))


def fill(template: str, values: Mapping[str, object]) -> str:
    """Put `values` into the `{name}` places of `template`; other braces (LaTeX) are left alone."""
    return re.sub(r"\{(\w+)\}", lambda m: str(values.get(m.group(1), m.group(0))), template)
