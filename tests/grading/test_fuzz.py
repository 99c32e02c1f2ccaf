"""Graders on any text: they give a verdict, and take time in proportion to the text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.grading import text as text_grading
from components.grading.choice import chosen_letter
from components.grading.math.boxed import boxed_answer
from components.grading.math.clean import clean
from components.grading.math.compare import MAX_LENGTH
from components.grading.math.pool import Pool
from components.grading.math.shape import read

PIECES = (
    r"\boxed{ } { ( ) [ ] $ \$ , ; = < \le \ne \pm ^ _ ^{ "
    r"^\circ \frac{1}{2} \frac \sqrt sqrt( \text{ "
    r"\{ \} \begin{cases} \end{cases} & \\ | % \% and or not 1 2.5 3/4 -7 0.333... 12,000 x y f(x) "
    r"pi million seven ** ` \pmod{ _2 answer is B A. (C)"
).split()
TEXTS = st.one_of(
    st.text(max_size=60), st.lists(st.sampled_from(PIECES), max_size=14).map(" ".join)
)
LOOPS = [
    *PIECES,
    "Wait. ",
    "hold on, ",
    "The answer is not ",
    "\n",
    "\\",
    "A. 0\n",
    "**",
    "((",
    "1,",
    " ",
    "A ",
    "answer be ",
    "Answer: the ",
    "A is the ",
]


@settings(max_examples=40, deadline=None)
@given(TEXTS)
def test_cleaning_and_reading_never_fail(text: str) -> None:
    read(clean(text))
    boxed_answer(text)


@settings(max_examples=40, deadline=None)
@given(TEXTS, TEXTS)
def test_the_math_grader_always_gives_a_verdict(gold: str, pred: str) -> None:
    verdict = POOL.grade(gold, pred)
    assert verdict.reason and (not verdict.equal or verdict.limit is None)


@settings(max_examples=40, deadline=None)
@given(TEXTS.filter(str.strip))
def test_an_answer_equals_itself(text: str) -> None:
    assert POOL.grade(text, text).equal


POOL = Pool(workers=1, seconds=1)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(text_grading.GRADERS)), TEXTS, TEXTS)
def test_the_text_graders_always_give_a_verdict(name: str, gold: str, pred: str) -> None:
    if name != "regex":  # whose gold is checked when the data set is read
        assert text_grading.grade(name, gold, pred, ["red", "green"]).reason


@pytest.mark.parametrize("piece", LOOPS)
def test_twenty_thousand_characters_of_a_loop_are_read(piece: str) -> None:
    text = "x" + piece * (20_000 // len(piece)) + "x"
    boxed_answer(text)
    chosen_letter(text, ["red", "green"])
    for name in set(text_grading.GRADERS) - {"regex"}:
        text_grading.grade(name, "5", text, ["red", "green"])
    read(clean(text[:MAX_LENGTH]))
