r"""Ratios and times of day: `2:3`, `2 to 3`, `1:\sqrt{3}:2`, `10:25`."""

import re

from components.grading.math import algebra
from components.grading.math.brackets import split
from components.grading.math.exact import number
from components.grading.math.shapes import Atom, Ratio, Shape

_TO = re.compile(r" ?\\text ?\{ ?(?:to|:) ?\} ?| to ")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}|\\(?:text|to|rightarrow|mapsto|in|mid|colon)\b")
_CLOCK = re.compile(r"\d{1,2}:[0-5]\d")


def ratio(text: str) -> Ratio | None:
    """The terms of a ratio; None for any other text."""
    terms = tuple(split(_TO.sub(":", text), (":",)))
    if len(terms) < 2 or not all(terms) or any(map(_WORD.search, terms)):
        return None
    return Ratio(terms)


def as_fraction(shape: Shape, other: Shape) -> Shape:
    """A ratio of two terms as their quotient, beside anything but a ratio."""
    if isinstance(shape, Ratio) and not isinstance(other, Ratio) and len(shape.terms) == 2:
        return Atom(f"\\frac{{{shape.terms[0]}}}{{{shape.terms[1]}}}")
    return shape


def same_ratio(gold: Ratio, pred: Ratio) -> tuple[bool, str]:
    """Whether the terms are proportional; what may be a time of day is compared as written."""
    equal = len(gold.terms) == len(pred.terms) and _proportional(gold.terms, pred.terms)
    return equal, "the same ratio" if equal else "different ratios"


def _proportional(ours: tuple[str, ...], theirs: tuple[str, ...]) -> bool:
    if any(_CLOCK.fullmatch(":".join(terms)) for terms in (ours, theirs)):
        return [number(term) for term in ours] == [number(term) for term in theirs]
    if [number(term) == 0 for term in ours] != [number(term) == 0 for term in theirs]:
        return False
    return all(
        algebra.equal(f"({ours[i]})\\cdot ({theirs[j]})", f"({ours[j]})\\cdot ({theirs[i]})")[0]
        for j in range(len(ours))
        for i in range(j)
    )
