"""Reads integers, decimals, fractions, mixed numbers and recurring decimals exactly."""

import re
from fractions import Fraction

MAX_DIGITS = 4000
_UNSIGNED = r"(?:\d+(?:\.\d*)?|\.\d+)"
_PLAIN = re.compile(rf"{_UNSIGNED}")
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_BLANK_THOUSANDS = re.compile(r"\d{1,3}(?: \d{3})+(?:\.\d+)?")
# Separators of other places; one point alone is a decimal point, one underscore an index.
_OTHER_THOUSANDS = re.compile(r"\d{1,3}(?:(?:'\d{3})+|(?:\.\d{3}){2,}|(?:_\d{3}){2,})")
_FRAC = re.compile(r"(?:(\d+) ?)?\\frac\{(-?[\d.,]+)\}\{(-?[\d.,]+)\}")
_SLASH = re.compile(rf"(?:(\d+) )?\(?(-?{_UNSIGNED})\)? ?/ ?\(?({_UNSIGNED})\)?")
_SCIENTIFIC = re.compile(
    rf"({_UNSIGNED}) ?(?:\\times|\\cdot|\*|x) ?10 ?\^ ?(?:\{{ ?(-?\d{{1,3}}) ?\}}|(\d))"
)
_E_NOTATION = re.compile(rf"({_UNSIGNED})[eE]([+-]?\d{{1,3}})")
_REPEATING = re.compile(
    r"(\d*)\.(\d*)(?:\\(?:overline|bar|dot) ?(?:\{ ?(\d+) ?\}|(\d))|\((\d+)\)"
    r"|(\d)\6\6+ ?(?:\.\.\.|\\cdots)|(\d{2,})\7\7+ ?(?:\.\.\.|\\cdots))"
)
# A mark on every recurring digit, or a dot on the first and the last of them.
_DOTTED = re.compile(r"((?:\\(?:bar|dot) ?\{ ?\d ?\}){2,}|\\dot ?\{ ?\d ?\}\d*\\dot ?\{ ?\d ?\})$")


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
    if _OTHER_THOUSANDS.fullmatch(body):
        return Fraction(re.sub(r"\D", "", body))
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
    dotted = _DOTTED.search(body)
    if dotted is not None:
        body = f"{body[: dotted.start()]}({re.sub(r'[^0-9]', '', dotted[1])})"
    match = _REPEATING.fullmatch(body)
    if match is None:
        return None
    whole, lead = match[1] or "0", match[2]
    cycle = next(group for group in match.groups()[2:] if group)
    shift: int = 10 ** len(lead)
    nines: int = 10 ** len(cycle) - 1
    period = Fraction(int(cycle), nines)
    return int(whole) + (Fraction(int(lead or "0")) + period) / shift
