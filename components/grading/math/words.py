"""Answers in words: without case, blanks and punctuation."""

from components.grading.math.shape import fold
from components.grading.math.shapes import Atom, Group, Quantity, Relation, Shape, Text

NO_SOLUTION = ("nosolution", "nosolutions", "norealsolution", "norealsolutions")


def same_words(gold: Shape, pred: Shape) -> bool:
    """True when both have words, and the same ones."""
    ours, theirs = words_of(gold), words_of(pred)
    return bool(ours) and _singular(ours) == _singular(theirs)


def _singular(words: str) -> str:
    """`solutions` may be named, in one or many, or left out behind `infinitely many`."""
    return words.replace("solutions", "solution").replace("manysolution", "many")


def words_of(shape: Shape) -> str:
    """The folded words of a shape, empty where it has none."""
    if isinstance(shape, Text):
        return shape.folded
    if isinstance(shape, Atom):
        return fold(shape.latex)
    if isinstance(shape, Quantity):
        return words_of(shape.value) + fold(shape.unit)
    if isinstance(shape, Group):
        return "".join(words_of(item) for item in shape.items)
    if isinstance(shape, Relation) and shape.signs == ("=",):
        return fold(shape.sides[-1])
    return ""
