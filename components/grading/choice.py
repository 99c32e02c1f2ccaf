"""Finds the choice that a text settles on, among lettered options."""

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass

MAX_CHOICES = 26
_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?=\{)")
_COMMAND = re.compile(r"\\(?:text|math)[a-z]*\s*(?=\{)|\\[()\[\]]")
_MARKS = re.compile(r"[{}$*_`\\\"\u201c\u201d]")
_BLANKS = re.compile(r"\s+")
# Bounded, since a model that loops may write thousands of these words.
_FILLER = (
    r"(?:(?:clearly|therefore|thus|most likely|likely|probably|definitely|indeed|simply|just"
    r"|actually|either|option|choice|letter|answer|the|be)\b[\s:]{0,3}){0,8}"
)
_LETTER = r"\(?\s*(?P<letter>[A-Z]|[a-z](?=\s*(?:[).,;:!?\n]|$)))\s*\)?(?![\w'\u2019])"
_MORE = r"(?P<more>\s*(?:,\s*(?:and|or)?|/|&|\band\b|\bor\b)\s*\(?[A-Z]\)?(?=\s*(?:[).,;!\n]|$)))?"
_BUT = r"(?:[\s,]*but\s+(?:rather\s+)?(?:option\s+)?\(?(?P<but>[A-Z])\)?(?!\w))?"
_STATED = re.compile(
    r"\b(?i:answers?|(?:correct|right|best|final|my)\s+(?:option|choice|response))\b"
    r"(?P<between>[^.\n:=?]{0,40}?)(?:\b(?i:is|are|be|was)\b|[:=]|(?i:(?<=answer))\s[-\u2013\u2014]\s)(?P<not>n't|n\u2019t|\s+not\b)?"
    rf"\s*[:=]?\s*(?i:{_FILLER}){_LETTER}{_MORE}{_BUT}"
)
_CHOSEN = re.compile(
    r"\b(?i:I|we)(?:'d|'ll| would| will)?\s+"
    r"(?i:choose|chose|pick|picked|select|go with|went with)\s+"
    rf"(?i:{_FILLER}){_LETTER}{_MORE}(?P<not>(?!))?(?P<but>(?!))?"
)
_CALLED_RIGHT = re.compile(
    r"\(?\b(?P<letter>[A-Z])\b\)?\s+(?i:is|must be|seems|looks)(?P<not>n't|n\u2019t|\s+not\b)?\s+"
    r"(?i:(?:clearly|therefore|thus|the|indeed|definitely)\s+){0,8}(?i:correct|right|best|true|answer)\b"
    r"(?P<more>(?!))?(?P<but>(?!))?"
)
_IT_IS = re.compile(
    r"\b(?:(?i:it)(?:['\u2019]s|\s+(?i:is|must be|should be|has to be|would be))"
    r"|(?i:so|thus|hence|therefore),?)\s+"
    rf"(?i:{_FILLER})\(?(?P<letter>[A-Z])\)?(?=\s*(?:[.;!\n]|, (?:not|because|since|as)\b|$))"
    r"(?P<not>(?!))?(?P<more>(?!))?(?P<but>(?!))?"
)
_LEADING = re.compile(
    r"\s*\(?([A-Z])(?:\s*[).:,](?!\w)|\s*$|\s*\n|(?<![AI])\s+(?=[a-z(])"
    r"|\s[-\u2013\u2014]\s(?!\s*[A-Z]\b))"
)
_IN_ONE_LINE = re.compile(r"(?<!\S)\(?([A-Z])\s?[).:](?=\s)")
_LISTED = re.compile(r"^\s*\(?([A-Z])\s*[).:]", re.MULTILINE)
_ALONE = re.compile(r"\s*\(?([A-Za-z])\s*[).]?\s*[.!]?\s*")
_MENTIONED = re.compile(r"\b(?i:option|choice)\s+\(?([A-Z])\b|\(([A-Z])\)")


@dataclass(frozen=True, slots=True)
class Statement:
    """A sentence that names the answer: where it ends, and its letter (None: several, or a denial).

    A denial (`the answer is not C`) settles nothing, so that an earlier statement still counts.
    """

    end: int
    letter: str | None
    denial: bool


def chosen_letter(text: str, choices: Sequence[str] = ()) -> str | None:
    r"""The letter of the choice that a text settles on, or None.

    In this order: the last statement of the answer (`the answer is B`, `Answer: $C$`,
    `\boxed{D}`, `B is correct`); a letter that opens the text; a last line that is a letter; the
    only option that is mentioned; the only choice whose text is repeated. A text that merely
    repeats several options chooses none of them.

    Args:
        text: what the model answered.
        choices: the texts behind the letters; without them every letter is possible.
    """
    text = _MARKS.sub("", _COMMAND.sub("", _BOX.sub(" answer is ", text)))
    # Several patterns look for blanks at the same place: long runs of them would take cubic time.
    text = _BLANKS.sub(lambda blanks: "\n" if "\n" in blanks[0] else " ", text)
    letters = string.ascii_uppercase[: len(choices) or MAX_CHOICES]
    stated = [s for s in _statements(text, letters) if not s.denial]
    if stated:
        return stated[-1].letter
    listed = {match[1] for match in _LISTED.finditer(text)} & set(letters)
    inline = {match[2] for match in _MENTIONED.finditer(text)} & set(letters)
    in_line = {match[1] for match in _IN_ONE_LINE.finditer(text)} & set(letters)
    if len(listed) > 1 or len(inline) > 2 or len(in_line) > 2:  # the options, repeated
        return _last_line(text, letters)
    leading = _LEADING.match(text)
    if leading and leading[1] in letters:
        return leading[1]
    return _last_line(text, letters) or _only_mention(text, letters)


def _statements(text: str, letters: str) -> list[Statement]:
    found = []
    for pattern in (_STATED, _CHOSEN, _CALLED_RIGHT, _IT_IS):
        for match in pattern.finditer(text):
            letter = match["but"] or match["letter"].upper()
            denial = match["not"] is not None and match["but"] is None
            if letter in letters and not _pronoun(match, text):
                found.append(Statement(match.end(), None if match["more"] else letter, denial))
    return sorted(found, key=lambda statement: statement.end)


def _pronoun(match: re.Match[str], text: str) -> bool:
    """True for the I of `the answer: I think`, and the A of `the answer is: A triangle`."""
    behind = text[match.end("letter") : match.end("letter") + 12]
    word = re.match(r"\s+([a-z']+)", behind)
    if word is None or match["letter"] not in "AI":
        return False
    return match["letter"] == "I" or word[1] not in (
        "because",
        "since",
        "as",
        "and",
        "or",
        "but",
        "for",
        "is",
        "must",
        "seems",
        "looks",
        "not",
    )


def _last_line(text: str, letters: str) -> str | None:
    lines = text.strip().splitlines()
    alone = _ALONE.fullmatch(lines[-1]) if lines else None
    letter = alone[1].upper() if alone else None
    return letter if letter is not None and letter in letters else None


def _only_mention(text: str, letters: str) -> str | None:
    mentioned = {match[1] or match[2] for match in _MENTIONED.finditer(text)} & set(letters)
    return mentioned.pop() if len(mentioned) == 1 else None
