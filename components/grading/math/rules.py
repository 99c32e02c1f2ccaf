r"""Sets given by a rule: `\{2k : k \in \mathbb{Z}\}`."""

from components.grading.math.brackets import split

_BARS = ("\\mid", "\\vert", "\\colon", ":", "|")


def rule(inner: str) -> tuple[str, str] | None:
    """What stands before and behind the bar or colon inside a set's braces; None without one."""
    for bar in _BARS:
        parts = split(inner, (bar,))
        if len(parts) == 2 and all(parts):
            return parts[0], parts[1]
    return None
