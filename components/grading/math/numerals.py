"""Numbers in English words: `seven`, `twenty-one`, `one hundred and five`, `two thirds`."""

import re
from fractions import Fraction

_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_SMALL = {word: value for value, word in enumerate(_UNITS)} | {
    word: 10 * place for place, word in enumerate(_TENS, start=2)
}
_SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9}
_PARTS = {
    "half": 2,
    "halve": 2,
    "third": 3,
    "quarter": 4,
    "fourth": 4,
    "fifth": 5,
    "sixth": 6,
    "seventh": 7,
    "eighth": 8,
    "ninth": 9,
    "tenth": 10,
}
_MAX_WORDS = 24


def spelled_number(text: str) -> Fraction | None:
    """The value of a number spelled in words, or None for any other text."""
    words = re.findall(r"[a-z]+", text.lower())
    if not words or len(words) > _MAX_WORDS or re.search(r"[^A-Za-z\s,-]", text):
        return None
    bottom = _PARTS.get(words[-1].removesuffix("s"))
    if bottom is not None and len(words) > 1:
        top = _whole(["one"] if words[:-1] == ["a"] else words[:-1])
        return None if top is None else Fraction(top, bottom)
    if words == ["half"]:
        return Fraction(1, 2)
    value = _whole(words)
    return None if value is None else Fraction(value)


def _whole(words: list[str]) -> int | None:
    total, group, last = 0, 0, 0
    for place, word in enumerate(words):
        if word == "and" and 0 < place < len(words) - 1 and words[place - 1] in _SCALES:
            continue
        if word in _SMALL:
            value = _SMALL[word]
            if last and not (last >= 20 and last < 100 and value < 10) and last < 100:
                return None  # `five six` is not a number
            group, last = group + value, value
        elif word == "hundred" and 0 < group < 100:
            group, last = group * 100, 100
        elif word in _SCALES and group:
            total, group, last = total + group * _SCALES[word], 0, _SCALES[word]
        else:
            return None
    return total + group
