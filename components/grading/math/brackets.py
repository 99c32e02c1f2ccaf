"""Where brackets open and close in a formula, and what stands between separators outside them."""

import re

OPENERS = {"(": ")", "[": "]", "\\{": "\\}", "\\langle": "\\rangle"}
TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|.", re.DOTALL)


def closes_at_end(tokens: list[str]) -> bool:
    """True when the bracket that the first token opens is closed by the last one."""
    depth = 0
    for place, token in enumerate(tokens):
        if token in OPENERS or token == "{":
            depth += 1
        elif token in OPENERS.values() or token == "}":
            depth -= 1
            if depth == 0 and place < len(tokens) - 1:
                return False
    return depth == 0


def split(text: str, separators: tuple[str, ...]) -> list[str]:
    """Cut at separators that stand outside every bracket."""
    pieces, current, depth = [], "", 0
    for token in TOKEN.findall(text):
        if token in OPENERS or token == "{":
            depth += 1
        elif token in OPENERS.values() or token == "}":
            depth -= 1
        if depth == 0 and token in separators:
            pieces.append(current.strip())
            current = ""
        else:
            current += token
    return [*pieces, current.strip()]
