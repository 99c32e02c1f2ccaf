"""Numbers written in a stated base."""

import re

from components.grading.math.shapes import Based

_BASED = re.compile(
    r"\(?([0-9A-Za-z]+)\)? ?_ ?(?:\{ ?(?:\\text ?\{)?\(?([a-z]+|\d+)\)?\}? ?\}|(\d))"
)
_BASE_WORDS = re.compile(r"([0-9A-Z]+) ?\\?(?:text ?\{)? ?\(? ?(?:in )?base[ -](\w+) ?\)? ?\}?")
_NUMERALS = "zero one two three four five six seven eight nine ten eleven twelve".split()


def in_base(text: str) -> Based | None:
    """The digits and the base of `101_2` or `1A in base 16`; None for any other text."""
    match = _BASED.fullmatch(text)
    if match is not None:
        digits, base = match[1], match[2] or match[3]
    else:
        match = _BASE_WORDS.fullmatch(text)
        if match is None:
            return None
        digits, base = match[1], match[2]
    value = int(base) if base.isdigit() else _NUMERALS.index(base) if base in _NUMERALS else 0
    if not 2 <= value <= 36 or not any(char.isdigit() for char in digits):
        return None
    if not all(int(char, 36) < value for char in digits):
        return None
    return Based(digits.upper().lstrip("0") or "0", value)
