r"""Currency signs and codes beside an amount: `\$5`, `5€`, `-\$5`, `Rs. 500`, `US$20`."""

import re

_SIGNS = {
    "\\$": "dollar",
    "$": "dollar",
    "\u20ac": "euro",
    "\\euro": "euro",
    "\u00a3": "pound sterling",
    "\\pounds": "pound sterling",
    "\u00a2": "cent",
    "\\cent": "cent",
    "\u20b9": "rupee",
    "\u00a5": "yen",
    "\\yen": "yen",
}
_CODES = {
    "usd": "dollar",
    "us\\$": "dollar",
    "us$": "dollar",
    "eur": "euro",
    "gbp": "pound sterling",
    "rs": "rupee",
    "inr": "rupee",
    "jpy": "yen",
}
_CODED = re.compile(
    r"(?:\\text ?\{ ?)?(USD|US\\?\$|EUR|GBP|Rs|INR|JPY)\.?(?: ?\})? ?(-?[\d.,]+)", re.IGNORECASE
)


def split_money(text: str) -> tuple[str, str] | None:
    """An amount without its currency sign or leading code, and the currency; None without one."""
    sign = "-" if text.startswith("-") else ""
    bare = text.removeprefix("-").lstrip()
    for mark, currency in _SIGNS.items():
        if bare.startswith(mark):
            return sign + bare.removeprefix(mark).strip(), currency
        if text.endswith(mark):
            return text.removesuffix(mark).strip(), currency
    coded = _CODED.fullmatch(bare)
    return (sign + coded[2], _CODES[coded[1].lower()]) if coded else None
