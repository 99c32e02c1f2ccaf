"""Signs of reconsideration in reasoning text (seed S0, facts 0.7)."""

import re
from typing import NamedTuple

PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern, re.IGNORECASE | flags))
    for name, pattern, flags in (
        ("wait_line", r"^[ \t]*wait(?=[\s,.;:!?\u2026\u2013\u2014-]|$)", re.MULTILINE),
        ("wait_reconsider", r"\bwait\b.*?\breconsider\b", re.DOTALL),
        ("reconsider_exact", r"\bwait\b[\s,.;:!\u2026\u2013\u2014-]*let me reconsider\b", 0),
        ("step_by_step", r"\blet['\u2019]?s take (?:this|it) step[\s-]+by[\s-]+step\b", 0),
        ("step_by_step_alt", r"\bstep[\s-]+by[\s-]+step\b", 0),
        ("recheck", r"\bre-?check(?:ing|ed|s)?\b", 0),
        ("hold_on_reasoning_wrong", r"\bhold on\b.*?\breasoning\b.*?\bwrong\b", re.DOTALL),
        (
            "approach_not_correct",
            r"\bactually\b.*?\bapproach\b.*?\b(?:doesn['\u2019]?t|does not) look correct\b",
            re.DOTALL,
        ),
    )
)
# What every pattern has in it: most texts without are told by one search instead of all.
_ANY = re.compile("wait|step|check|hold on|actually", re.IGNORECASE)
INJECTED = "injected_cue"
EXCERPT_CHARS = 60


class Markers(NamedTuple):
    """Names in the order of `PATTERNS`, and the earliest's character offset (None without any)."""

    names: list[str]
    position: int | None


def find_markers(text: str, start: int = 0) -> Markers:
    """Search `text` from offset `start` (past an injected cue).

    Positions count from the text's beginning.
    """
    if not _ANY.search(text, start):
        return Markers([], None)
    hits = [(name, match.start()) for name, rx in PATTERNS if (match := rx.search(text, start))]
    return Markers([name for name, _ in hits], min((at for _, at in hits), default=None))


def excerpt(text: str, position: int) -> str:
    """Up to 60 characters either side of `position`."""
    return text[max(0, position - EXCERPT_CHARS) : position + EXCERPT_CHARS]
