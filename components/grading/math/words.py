"""Answers in words: without case, blanks and punctuation."""

import re

from components.grading.math.shapes import Atom, Group, Quantity, Relation, Shape, Text

WORDS = re.compile(r"\\text ?\{([^{}]*)\}")
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


def is_words(text: str) -> bool:
    r"""True for `\text{...}` around words (also with a bracketed letter), and for bare words."""
    bare = WORDS.sub(lambda m: m[1], text)
    if re.search(r"[\\^_=+*/{}<>]", bare):
        return False
    letters = re.findall(r"[^\W\d_]+", bare)
    if not letters or (re.search(r"\d", bare) and not re.match(r"\W*[^\W\d_]{3,}", bare)):
        return False
    wrapped = bare != text and WORDS.sub("", text).strip(" ().,!") == ""
    return wrapped or max(map(len, letters)) >= 3


def fold(text: str) -> str:
    """Words without case, blanks, punctuation, text commands and a leading article."""
    bare = re.sub(r"\\(?:text|mathrm) ?", "", text)
    bare = re.sub(r"(?i)^[{\s]*(?:an?|the)\s+(?=[a-z-]{2})", "", bare)
    bare = re.sub(r"(?<=[A-Za-z]{2})-(?=[A-Za-z]{2})", "", bare)
    return re.sub(r"[\s{}();:!?'\"$~]|[.,](?!\d)|(?<!\d)[.,]|\\(?=[ ,;:!])", "", bare).casefold()
