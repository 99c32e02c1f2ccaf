"""Markers are those of the original expressions, found in time that grows with the text."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.run.markers import MARKERS, find_markers, marker_places

# One expression per marker, as the original runners have them.
ORIGINAL = {
    name: re.compile(pattern, re.IGNORECASE | flags)
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
}
WORDS = (
    "wait Wait WAIT awaits reconsider reconsidering let me reconsider let's take it step by step "
    "recheck re-checking check hold on reasoning wrong wrongly actually approach doesn't does not "
    "look correct"
).split()
WORDS += ["let me reconsider", "hold on", "step-by-step", "does not look correct"]
PIECES = [*WORDS, " ", " ", "\n", "\t", ", ", ". ", "-", "\u2026", "_", "\u017f", "x"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=24).map("".join)


@given(TEXTS, st.integers(0, 40))
def test_places_are_those_of_the_original_expressions(text: str, start: int) -> None:
    expected = {name: rx.search(text, start) for name, rx in ORIGINAL.items()}
    places = {name: (begin, end) for name, begin, end in marker_places(text, start)}
    assert places == {name: match.span() for name, match in expected.items() if match}
    names, position = find_markers(text, start)
    assert names == list(places)
    assert position == min((begin for begin, _ in places.values()), default=None)


def test_every_marker_has_an_original_of_its_name() -> None:
    assert [name for name, _ in MARKERS] == list(ORIGINAL)


@pytest.mark.parametrize(
    "sentence",
    [
        "hold on, my reasoning. ",
        "Wait, actually, maybe the approach is wrong. ",
        "Wait. ",
        "wait\n\n\t\t",
        "step by ",
    ],
)
def test_eight_times_the_text_of_a_loop_takes_far_less_than_64_times_as_long(sentence: str) -> None:
    def seconds(length: int) -> float:
        text = sentence * (length // len(sentence))
        times = []
        for _ in range(3):
            begun = time.process_time()
            find_markers(text)
            times.append(time.process_time() - begun)
        return max(min(times), 1e-4)

    assert seconds(160_000) / seconds(20_000) < 32
