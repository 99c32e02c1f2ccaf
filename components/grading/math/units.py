"""Units at the end of a quantity, in one spelling."""

import re

from components.grading.math.money import split_money

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
    "%": "percent pct",
    "dollar": "dollar usd",
    "euro": "euro eur",
    "pound sterling": "gbp",
    "cent": "cent",
    "rupee": "rupee rs inr",
    "yen": "yen jpy",
    "newton": "n newton",
    "joule": "j joule",
    "watt": "w watt",
    "volt": "v volt",
    "ampere": "a ampere amp",
    "pascal": "pa pascal",
    "hertz": "hz hertz",
    "celsius": "c celsius",
    "fahrenheit": "f fahrenheit",
    "kelvin": "k kelvin",
    "degree": "degree deg",
    "radian": "radian rad",
    "unit": "unit",
    "person": "person people",
    "am": "am",
    "pm": "pm",
}
_CANON = {word: canon for canon, words in _SPELLINGS.items() for word in words.split()}
_WHOLE = {"mph": "mi/h", "kph": "km/h", "kmh": "km/h", "fps": "ft/s"}
_POWERS = {"square": "2", "sq": "2", "cubic": "3", "cu": "3"}
_BARE = re.compile(
    r"(.*(?:[\d}!)]|\\pi))( ?)((?:(?:square|sq|cubic|cu)\.? )?[A-Za-z]+"
    r"(?:(?: ?/ ?| per )[A-Za-z]+| sterling)?)"
    r"( ?\^ ?\{?[23]\}?)?"
)
_TEXT = re.compile(r"(.*[^\s\\]) ?\\text ?\{([^{}]*)\} ?(\^ ?\{? ?\d ?\}?)?")
_MODULUS = re.compile(
    r"(.*?[^\s(,]),? ?(?:\\pmod ?(?:\{ ?(\w+) ?\}|(\w))"
    r"|\(? ?(?:\\[bp]?mod|mod|modulo|\\text ?\{ ?mod ?\}) ?\{? ?(\w+) ?\}? ?\)?)"
)
_ANGLE_FUNCTION = re.compile(r"\\(?:arc)?(?:sin|cos|tan|cot|sec|csc)(?![a-gi-z])")
_LETTER = re.compile(r"(-?[\d.,]*\d) ?((?:sq\.? )?[mhsglMJNVWKACF](?: ?\^ ?\{?[23]\}?)?)")
_SCALE = re.compile(r"(-?[\d.,]*\d) ?\^\\circ ?([CFK])")
_QUOTIENT = re.compile(
    r"\\frac ?\{ ?\\text ?\{([^{}]*)\} ?\} ?\{ ?\\text ?\{([^{}]*)\} ?(\^ ?\{? ?\d ?\}?)? ?\}$"
)
_JOINED = re.compile(r"\} ?(?:\\cdot|\\times|(/)) ?\\text ?\{")
_MEGA = re.compile(r"\bM(?=(?:g|m|W|J|N|Pa|Hz|V|A|eV)\b)")
_BITS = re.compile(r"\b([kKMGT])b(ps)?\b")
_NOON = re.compile(r"(?<=[\d ])([AaPp])\. ?([Mm])\.?$")
_FUNCTIONS = {
    "sin",
    "cos",
    "tan",
    "cot",
    "csc",
    "log",
    "exp",
    "mod",
    "det",
    "max",
    "gcd",
    "lcm",
}


_KINDS = (
    {"year", "month", "week", "day", "h", "min", "s"},
    {"mi", "yd", "ft", "in"},
    {"km", "m", "cm", "mm"},
    {"lb", "oz"},
    {"kg", "g", "mg"},
    {"l", "ml"},
    {"dollar", "cent"},
)
_PART = re.compile(r"(\d+(?:\.\d+)?) ?([A-Za-z]+)\.?(?:,? and |,? ?|$)")


def split_compound(text: str) -> tuple[tuple[str, str], ...]:
    """Units and values of a quantity in several units of one kind; empty for any other text.

    `6 hours and 30 minutes` and `6 h 30 min` are (h, 6), (min, 30).
    """
    plain = re.sub(r"\s+", " ", re.sub(r"\\text ?\{([^{}]*)\}", r" \1 ", text)).strip()
    matches = list(_PART.finditer(plain))
    if len(matches) < 2 or "".join(match[0] for match in matches) != plain:
        return ()
    units = [canonical_unit(match[2]) or "" for match in matches]
    if "h" in units or "s" in units:
        units = ["min" if unit == "m" else unit for unit in units]
    one_kind = any(kind.issuperset(units) for kind in _KINDS)
    if not one_kind or len(set(units)) < len(units):
        return ()
    return tuple(sorted(zip(units, (match[1] for match in matches), strict=True)))


def split_unit(text: str) -> tuple[str, str | None]:
    r"""A cleaned answer without its unit, and the unit in its one spelling, None where it has none.

    Read from a trailing `\text{...}`, a degree sign, a dollar sign in front, or a known or long
    bare word after a number.
    """
    money = split_money(text)
    if money is None:
        return _split_named(text)
    amount, rate = _split_named(money[0])
    return (amount, money[1] + rate) if rate and rate.startswith("/") else money


def _split_named(text: str) -> tuple[str, str | None]:
    """As `split_unit`, of a text without a currency sign."""
    text = _NOON.sub(r"\1\2", _in_one_text(text))
    scale = _SCALE.fullmatch(text)
    if scale and not _ANGLE_FUNCTION.search(text):
        return scale[1], _CANON[scale[2].lower()]
    if text.endswith("^\\circ") and not _ANGLE_FUNCTION.search(text):
        return text[: -len("^\\circ")].strip(), "degree"
    modulus = _MODULUS.fullmatch(text)
    if modulus:
        return modulus[1].strip(), f"mod {modulus[2] or modulus[3] or modulus[4]}"
    match = _TEXT.fullmatch(text)
    if match and re.search(r"[A-Za-z]", match[2]):
        unit = canonical_unit(match[2] + (match[3] or ""))
        head = re.sub(r"\^\\circ$", "", match[1].strip())
        if head.endswith("/") and unit:
            return head[:-1].strip(), f"/{unit}"
        return (head, unit) if unit else (text, None)
    match = _BARE.fullmatch(text)
    if match and _is_word(match[3], bool(match[2])):
        return match[1].strip(), canonical_unit(match[3] + (match[4] or ""))
    return text, None


def _in_one_text(text: str) -> str:
    r"""`\frac{\text{m}}{\text{s}^2}` and `\text{N}\cdot\text{m}` at the end as one `\text`."""
    quotient = _QUOTIENT.search(text)
    if quotient:
        text = f"{text[: quotient.start()]}\\text{{{quotient[1]}/{quotient[2]}{quotient[3] or ''}}}"
    return _JOINED.sub(lambda match: match[1] or " ", text)


def split_letter_unit(text: str) -> tuple[str, str] | None:
    """`36 m^2` as number and unit, for texts that are compared with a quantity.

    In any other text a single letter behind a number is a variable.
    """
    match = _LETTER.fullmatch(text)
    return (match[1], canonical_unit(match[2]) or match[2]) if match else None


def same_unit(gold: str, pred: str) -> bool:
    """True for one canonical unit; a temperature in degrees may lack its scale."""
    return gold == pred or {gold, pred} in ({"degree", "celsius"}, {"degree", "fahrenheit"})


def canonical_unit(text: str) -> str | None:
    """`square centimetres`, `cm^2` and `sq. cm` are `cm^2`; None when there are no letters."""
    words = _BITS.sub(
        lambda bits: f"{bits[1]} bit{'/s' if bits[2] else ''}", _MEGA.sub("mega ", text)
    ).replace("\\cdot", " ")
    words = words.lower().replace("per cent", "percent")
    words = re.sub(r"(?:^|\s)per\s", "/", words)
    words = re.sub(r"\b([ap])\. ?m\b", r"\1m", words)
    words = re.sub(r"[{}.]", " ", words)
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
    if not parts:
        return ""
    if parts[0] in ("pound", "pounds") and parts[1:] == ["sterling"]:
        return "pound sterling"
    name = " ".join(
        _CANON.get(word, _CANON.get(word.rstrip("s"), word.rstrip("s"))) for word in parts
    )
    name = re.sub(r"^degree (?=celsius|fahrenheit)", "", name)
    return f"{name}^{power}" if power and power != "1" else name


def _is_word(words: str, spaced: bool) -> bool:
    last = re.split(r"[ /]", words.lower())[-1]
    if last in _FUNCTIONS:
        return False
    known = last in _CANON or last.rstrip("s") in _CANON or words.lower() in _WHOLE
    if len(last) == 1:
        return known and "/" in words
    return known or (spaced and len(last) >= 4)
