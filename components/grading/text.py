"""Graders for short text answers: exact, normalised, contains, number, choice, regex."""

import re
import string
import time
import unicodedata
from collections.abc import Callable, Sequence
from fractions import Fraction

import regex  # type: ignore[import-untyped]

from components.grading.choice import chosen_letter
from components.grading.verdict import Verdict
from pipeline.spec import SpecError, require

REGEX_SECONDS = 2.0  # of processor time, so that the wall clock stays under 5 s beside other work
MAX_LENGTH = 100_000  # characters of a prediction that are looked at
MAX_DIGITS = 4000  # of a number that is read
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans(
    {char: " " for char in string.punctuation + "\u2018\u2019\u201c\u201d\u2013\u2014"}
)
_NUMBER = re.compile(
    r"(?<![\w.])[-+\u2212]?[$\u20ac\u00a3]?(\d{1,3}(?:,\d{3})+|\d+)?(\.\d+)?"
    r"(?:[eE]([-+]?\d{1,3})|/(\d+))?(?!\w|\.\d)"
)
_MINUS = re.compile(r"(?<![\w.])[-\u2212](?=[.\d])")
_POINT = re.compile(r"(?<=\d)\.(?=\d)")
_SEPARATOR = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")

Grader = Callable[[str, str], tuple[bool, str]]


def grade(name: str, gold: str, pred: str, choices: Sequence[str] = ()) -> Verdict:
    """Compare by the grader called `name`; `choices` are the texts behind letters, for `choice`."""
    started = time.monotonic()
    pred = pred[:MAX_LENGTH]
    if not pred.strip():
        equal, reason = False, "no answer"
    elif name == "choice":
        equal, reason = choice(gold, pred, choices)
    else:
        equal, reason = GRADERS[name](gold, pred)
    return Verdict(equal, reason, time.monotonic() - started)


def answer_pattern(text: str | None) -> "regex.Pattern[str] | None":
    """`task.answer_pattern` compiled. Raises SpecError unless it has one group, the answer."""
    if text is None:
        return None
    try:
        pattern = regex.compile(text, regex.MULTILINE)
    except regex.error as error:
        rule = f"task.answer_pattern must be a regular expression, {error}"
        raise SpecError(f"{rule}: got {text!r}") from error
    require(pattern.groups == 1, "task.answer_pattern", "have one group, the answer", text)
    return pattern


def normal(text: str) -> str:
    """Case folded, accents and punctuation gone, no articles, single blanks.

    A number keeps its sign and its decimal point, so that -5 and 3.5 are not 5.
    """
    plain = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    plain = _MINUS.sub("\x01", _POINT.sub("\x02", _SEPARATOR.sub("", plain.casefold())))
    words = _ARTICLES.sub(" ", plain.translate(_PUNCTUATION))
    return " ".join(words.replace("\x01", "-").replace("\x02", ".").split())


def exact(gold: str, pred: str) -> tuple[bool, str]:
    """The same characters, outer blanks aside."""
    equal = gold.strip() == pred.strip()
    return equal, "same text" if equal else "different text"


def normalised(gold: str, pred: str) -> tuple[bool, str]:
    """The same words after `normal`; marks alone are compared as they are."""
    ours, theirs = normal(gold), normal(pred)
    if not ours:
        return exact(gold, pred)
    return ours == theirs, "same words" if ours == theirs else "different words"


def contains(gold: str, pred: str) -> tuple[bool, str]:
    """The gold words stand next to each other, as whole words, in the prediction."""
    ours, theirs = normal(gold), normal(pred)
    if not ours:
        return gold.strip() in pred, "looked for the characters"
    inside = f" {ours} " in f" {theirs} "
    return inside, "found" if inside else "not found"


def number(gold: str, pred: str) -> tuple[bool, str]:
    """The last number of the prediction equals the gold number exactly."""
    wanted, given = last_number(gold), last_number(pred)
    if wanted is None:
        return False, "the gold holds no number"
    if given is None:
        return False, "no number in the prediction"
    return given == wanted, f"{given} against {wanted}" if given != wanted else "equal numbers"


def pattern(gold: str, pred: str) -> tuple[bool, str]:
    """The gold, a regular expression, matches somewhere in the prediction (with a time limit)."""
    try:
        match = regex.search(gold, pred, timeout=REGEX_SECONDS)
    except TimeoutError:
        return False, f"the pattern took longer than {REGEX_SECONDS:g} s"
    return match is not None, "matches" if match else "no match"


def choice(gold: str, pred: str, choices: Sequence[str] = ()) -> tuple[bool, str]:
    """The letter that the prediction settles on is that of the gold, a letter, text or index."""
    wanted = letter_of(gold, choices)
    given = chosen_letter(pred, choices) or _only_text(pred, choices)
    if given is None:
        return False, "no choice in the prediction"
    return given == wanted, f"{given} against {wanted}" if given != wanted else "same choice"


def _only_text(pred: str, choices: Sequence[str]) -> str | None:
    """The letter of the only choice whose text the prediction repeats."""
    named = [index for index, text in enumerate(choices) if contains(text, pred)[0]]
    return string.ascii_uppercase[named[0]] if len(named) == 1 else None


def letter_of(gold: str, choices: Sequence[str]) -> str:
    """A, B, C ... for a gold that is a letter, an index or the text of a choice."""
    bare = gold.strip().strip("().")
    texts = [normal(text) for text in choices]
    if choices and normal(gold) in texts:
        return string.ascii_uppercase[texts.index(normal(gold))]
    if bare.isdigit() and int(bare) < max(len(choices), 1):
        return string.ascii_uppercase[int(bare)]
    return bare.upper()


def last_number(text: str) -> Fraction | None:
    """The last number written in digits, with separators, decimals or as a simple fraction."""
    last = None
    for match in _NUMBER.finditer(text):
        units, part, exponent, below = match.groups()
        if units is None and part is None:
            continue
        digits = (units or "0").replace(",", "") + (part or "")
        if len(digits) > MAX_DIGITS:
            continue
        value = Fraction(digits) * Fraction(10) ** int(exponent or 0)
        if below is not None:
            if int(below) == 0:
                continue
            value /= int(below)
        last = -value if match[0][0] in "-\u2212" else value
    return last


GRADERS: dict[str, Grader] = {
    "exact": exact,
    "normalised": normalised,
    "contains": contains,
    "number": number,
    "regex": pattern,
    "choice": choice,
}
