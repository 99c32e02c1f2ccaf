"""Units at the end of a quantity, in one spelling."""

import re

_SPELLINGS = {
    "mm": "mm millimeter millimetre",
    "cm": "cm centimeter centimetre",
    "m": "m meter metre",
    "km": "km kilometer kilometre",
    "in": "in inch inche",
    "ft": "ft foot feet",
    "yd": "yd yard",
    "mi": "mi mile",
    "s": "s sec second",
    "min": "min minute",
    "h": "h hr hour",
    "day": "day",
    "week": "week wk",
    "month": "month",
    "year": "year yr",
    "mg": "mg milligram",
    "g": "g gram gramme",
    "kg": "kg kilogram kilo",
    "lb": "lb pound",
    "oz": "oz ounce",
    "l": "l liter litre",
    "ml": "ml milliliter millilitre",
    "dollar": "dollar usd",
    "cent": "cent",
    "degree": "degree deg",
    "radian": "radian rad",
    "unit": "unit",
    "person": "person people",
}
_CANON = {word: canon for canon, words in _SPELLINGS.items() for word in words.split()}
_WHOLE = {"mph": "mi/h", "kph": "km/h", "kmh": "km/h", "fps": "ft/s"}
_POWERS = {"square": "2", "sq": "2", "cubic": "3", "cu": "3"}
_BARE = re.compile(
    r"(.*[\d}!)])( ?)((?:(?:square|sq|cubic|cu)\.? )?[A-Za-z]+(?:(?: ?/ ?| per )[A-Za-z]+)?)"
    r"( ?\^ ?\{?[23]\}?)?"
)
_TEXT = re.compile(r"(.*[^\s\\]) ?\\text ?\{([^{}]*)\} ?(\^ ?\{? ?\d ?\}?)?")
_FUNCTIONS = {
    "sin",
    "cos",
    "tan",
    "cot",
    "sec",
    "csc",
    "log",
    "exp",
    "mod",
    "det",
    "max",
    "gcd",
    "lcm",
}


def split_unit(text: str) -> tuple[str, str | None]:
    r"""A cleaned answer without its unit, and the unit in its one spelling.

    None when it has no unit.

    Read from a trailing `\text{...}`, a degree sign, a dollar sign in front, or a known or long
    bare word after a number.
    """
    if text.startswith("\\$") or text.startswith("$"):
        return text.lstrip("\\$").strip(), "dollar"
    if text.endswith("\\$"):
        return text[:-2].strip(), "dollar"
    if text.endswith("^\\circ"):
        return text[: -len("^\\circ")].strip(), "degree"
    match = _TEXT.fullmatch(text)
    if match and re.search(r"[A-Za-z]", match[2]):
        unit = canonical_unit(match[2] + (match[3] or ""))
        head = re.sub(r"\^\\circ$", "", match[1].strip())
        return (head, unit) if unit else (text, None)
    match = _BARE.fullmatch(text)
    if match and _is_word(match[3], bool(match[2])):
        return match[1].strip(), canonical_unit(match[3] + (match[4] or ""))
    return text, None


def canonical_unit(text: str) -> str | None:
    """`square centimetres`, `cm^2` and `sq. cm` are `cm^2`; None when there are no letters."""
    words = re.sub(r"[{}.]", " ", text.lower().replace(" per ", "/"))
    words = re.sub(r"\s*([/^])\s*", r"\1", words).strip()
    words = re.sub(r"^in (?=\w)", "", words)
    if not re.search(r"[a-z]", words):
        return None
    return "/".join(_one(part) for part in _WHOLE.get(words, words).split("/"))


def _one(words: str) -> str:
    base, _, power = words.partition("^")
    parts = base.split()
    if len(parts) > 1 and parts[0] in _POWERS:
        power, parts = _POWERS[parts[0]], parts[1:]
    if len(parts) > 1 and parts[-1] in ("squared", "cubed"):
        power, parts = ("2" if parts[-1] == "squared" else "3"), parts[:-1]
    name = " ".join(
        _CANON.get(word, _CANON.get(word.rstrip("s"), word.rstrip("s"))) for word in parts
    )
    return f"{name}^{power}" if power and power != "1" else name


def _is_word(words: str, spaced: bool) -> bool:
    last = re.split(r"[ /]", words.lower())[-1]
    if last in _FUNCTIONS:
        return False
    known = last in _CANON or last.rstrip("s") in _CANON or words.lower() in _WHOLE
    if len(last) == 1:
        return known and "/" in words
    return known or (spaced and len(last) >= 4)
