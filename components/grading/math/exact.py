"""Numbers written without letters, read exactly.

Integers, decimals, fractions, mixed and repeating ones.
"""

import re
from fractions import Fraction

MAX_DIGITS = 4000
_UNSIGNED = r"(?:\d+(?:\.\d*)?|\.\d+)"
_PLAIN = re.compile(rf"{_UNSIGNED}")
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_BLANK_THOUSANDS = re.compile(r"\d{1,3}(?: \d{3})+(?:\.\d+)?")
_FRAC = re.compile(r"(?:(\d+) ?)?\\frac\{(-?[\d.,]+)\}\{(-?[\d.,]+)\}")
_SLASH = re.compile(rf"(?:(\d+) )?\(?(-?{_UNSIGNED})\)? ?/ ?\(?({_UNSIGNED})\)?")
_SCIENTIFIC = re.compile(
    rf"({_UNSIGNED}) ?(?:\\times|\\cdot|\*|x) ?10 ?\^ ?(?:\{{ ?(-?\d{{1,3}}) ?\}}|(\d))"
)
_E_NOTATION = re.compile(rf"({_UNSIGNED})[eE]([+-]?\d{{1,3}})")
_REPEATING = re.compile(
    r"(\d*)\.(\d*)(?:\\(?:overline|bar|dot) ?(?:\{ ?(\d+) ?\}|(\d))|\((\d+)\)"
    r"|(\d)\6\6+ ?(?:\.\.\.|\\cdots))"
)


def number(text: str) -> Fraction | None:
    """The exact value of a cleaned literal, or None when it is anything else (or absurdly long)."""
    if len(text) > MAX_DIGITS:
        return None
    sign = 1
    body = text.strip()
    while body[:1] in ("-", "+"):
        sign = -sign if body[0] == "-" else sign
        body = body[1:].lstrip()
        if len(text) - len(body) > 8:
            return None
    value = _unsigned(body)
    return None if value is None else sign * value


def is_thousands(text: str) -> bool:
    """True for digits in groups of three: also readable as a list when a list is wanted."""
    return _THOUSANDS.fullmatch(text.strip().lstrip("+-")) is not None


def _unsigned(body: str) -> Fraction | None:
    if _PLAIN.fullmatch(body):
        return Fraction(body if body[-1] != "." else body[:-1])
    if _THOUSANDS.fullmatch(body) or _BLANK_THOUSANDS.fullmatch(body):
        return Fraction(body.replace(",", "").replace(" ", ""))
    for reader in (_fraction, _scientific, _repeating):
        value = reader(body)
        if value is not None:
            return value
    return None


def _fraction(body: str) -> Fraction | None:
    match = _FRAC.fullmatch(body) or _SLASH.fullmatch(body)
    if match is None:
        return None
    top, bottom = number(match[2]), number(match[3])
    if top is None or not bottom:
        return None
    whole = int(match[1]) if match[1] else 0
    if whole and top / bottom < 0:
        return None
    return whole + top / bottom


def _scientific(body: str) -> Fraction | None:
    match = _SCIENTIFIC.fullmatch(body)
    if match is not None:
        power: str = match[2] or match[3]
        return Fraction(f"{match[1]}e{power}")
    match = _E_NOTATION.fullmatch(body)
    return None if match is None else Fraction(f"{match[1]}e{match[2]}")


def _repeating(body: str) -> Fraction | None:
    match = _REPEATING.fullmatch(body)
    if match is None:
        return None
    whole, lead = match[1] or "0", match[2]
    cycle = match[3] or match[4] or match[5] or match[6]
    shift: int = 10 ** len(lead)
    nines: int = 10 ** len(cycle) - 1
    period = Fraction(int(cycle), nines)
    return int(whole) + (Fraction(int(lead or "0")) + period) / shift
