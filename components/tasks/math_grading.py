"""Whether two math answers are equal, by math-verify."""

import time
from dataclasses import dataclass

from math_verify import parse, verify


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether prediction equals gold, why, and how long the grading took."""

    equal: bool
    reason: str
    seconds: float


def grade(gold: str, pred: str) -> Verdict:
    """Compare two answers (LaTeX or plain)."""
    begun = time.monotonic()
    equal = gold.strip() == pred.strip() or verify(
        parse(f"\\boxed{{{gold}}}", parsing_timeout=None),
        parse(f"\\boxed{{{pred}}}", parsing_timeout=None),
        timeout_seconds=None,
    )
    return Verdict(bool(equal), "math-verify", time.monotonic() - begun)


def last_boxed(text: str) -> str | None:
    r"""The content of the last balanced `\boxed{...}` (a blank before the brace is fine), or None."""
    found = None
    start = text.find("\\boxed")
    while start >= 0:
        brace = start + len("\\boxed")
        while brace < len(text) and text[brace].isspace():
            brace += 1
        content = _balanced(text, brace)
        if content is not None:
            found = content
        start = text.find("\\boxed", brace)
    return found


def _balanced(text: str, brace: int) -> str | None:
    if brace >= len(text) or text[brace] != "{":
        return None
    depth = 0
    for index in range(brace, len(text)):
        if text[index] == "\\" and text[index + 1 : index + 2] in ("{", "}"):
            continue
        if text[index] in "{}" and (index == 0 or text[index - 1] != "\\"):
            depth += 1 if text[index] == "{" else -1
            if depth == 0:
                return text[brace + 1 : index].strip()
    return None
