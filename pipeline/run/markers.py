"""Signs of reconsideration in reasoning text, as the original two-pass runners look for them.

A marker is a few words that follow each other at any distance. They are searched for one after
another, each from the end of the one before, which takes time in proportion to the text. A single
expression with `.*?` between the words finds the same places, but takes the square or the cube of
the length of a text that says the first word over and over, as a model in a loop does.
"""

import re
from typing import NamedTuple

MARKERS: tuple[tuple[str, tuple[re.Pattern[str], ...]], ...] = tuple(
    (name, tuple(re.compile(word, re.IGNORECASE | re.MULTILINE) for word in words))
    for name, *words in (
        ("wait_line", r"^[ \t]*wait(?=[\s,.;:!?\u2026\u2013\u2014-]|$)"),
        ("wait_reconsider", r"\bwait\b", r"\breconsider\b"),
        ("reconsider_exact", r"\bwait\b[\s,.;:!\u2026\u2013\u2014-]*let me reconsider\b"),
        ("step_by_step", r"\blet['\u2019]?s take (?:this|it) step[\s-]+by[\s-]+step\b"),
        ("step_by_step_alt", r"\bstep[\s-]+by[\s-]+step\b"),
        ("recheck", r"\bre-?check(?:ing|ed|s)?\b"),
        ("hold_on_reasoning_wrong", r"\bhold on\b", r"\breasoning\b", r"\bwrong\b"),
        (
            "approach_not_correct",
            r"\bactually\b",
            r"\bapproach\b",
            r"\b(?:doesn['\u2019]?t|does not) look correct\b",
        ),
    )
)
# Every marker has one of these in it, so most texts without any are told by a single search.
_ANY = re.compile("wait|step|check|hold on|actually", re.IGNORECASE)
INJECTED = "injected_cue"
EXCERPT_CHARS = 60


class Marker(NamedTuple):
    """The first place of a marker: its name, and where it begins and ends in the text."""

    name: str
    begin: int
    end: int


class Markers(NamedTuple):
    """Names in the order of `MARKERS`, and the earliest's character offset (None without any)."""

    names: list[str]
    position: int | None


def marker_places(text: str, start: int = 0) -> list[Marker]:
    """The first place of each marker at or after offset `start`, in the order of `MARKERS`."""
    if not _ANY.search(text, start):
        return []
    places = ((name, _search(words, text, start)) for name, words in MARKERS)
    return [Marker(name, *span) for name, span in places if span]


def _search(words: tuple[re.Pattern[str], ...], text: str, start: int) -> tuple[int, int] | None:
    """Where `words` follow one another: the earliest of each.

    If the other words do not follow the first place of a word, they follow none of its later ones.
    """
    begin, end = None, start
    for word in words:
        match = word.search(text, end)
        if match is None:
            return None
        begin, end = match.start() if begin is None else begin, match.end()
    return None if begin is None else (begin, end)


def find_markers(text: str, start: int = 0) -> Markers:
    """The markers at or after offset `start`, which lies behind an injected cue.

    Positions count from the text's beginning.
    """
    places = marker_places(text, start)
    earliest = min((place.begin for place in places), default=None)
    return Markers([place.name for place in places], earliest)


def excerpt(text: str, position: int) -> str:
    """Up to 60 characters either side of `position`."""
    return text[max(0, position - EXCERPT_CHARS) : position + EXCERPT_CHARS]
