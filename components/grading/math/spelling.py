r"""Turns what people and models write beside LaTeX into LaTeX, without changing what it means.

Markdown, dollar signs around single values, Unicode signs, function names without a backslash
(`ln(2)`, `sqrt(x)`, `exp(-2)`), powers and roots in plain text, `3 million`, `7 (mod 10)`.
"""

import re

_SIGNS = {
    "\u2212": "-",
    "\u2010": "-",
    "\u2011": "-",
    "\u2013": "-",
    "\u2014": "-",
    "\u00d7": "\\times ",
    "\u2a2f": "\\times ",
    "\u2217": "*",
    "\u00b7": "\\cdot ",
    "\u22c5": "\\cdot ",
    "\u2219": "\\cdot ",
    "\u00f7": "/",
    "\u2044": "/",
    "\u2215": "/",
    "\u2236": ":",
    "\u03c0": "\\pi ",
    "\u221e": "\\infty ",
    "\u00b0": "^\\circ ",
    "\u222a": "\\cup ",
    "\u2229": "\\cap ",
    "\u2216": "\\setminus ",
    "\u2208": "\\in ",
    "\u2264": "\\le ",
    "\u2a7d": "\\le ",
    "\u2265": "\\ge ",
    "\u2a7e": "\\ge ",
    "\u2260": "\\ne ",
    "\u2261": "\\equiv ",
    "\u00b1": "\\pm ",
    "\u2213": "\\mp ",
    "\u00bd": "\\frac{1}{2}",
    "\u2153": "\\frac{1}{3}",
    "\u2154": "\\frac{2}{3}",
    "\u00bc": "\\frac{1}{4}",
    "\u00be": "\\frac{3}{4}",
    "\u2155": "\\frac{1}{5}",
    "\u215b": "\\frac{1}{8}",
    "\u00a0": " ",
    "\u2009": " ",
    "\u202f": " ",
    "\u200b": "",
    "\u2061": "",
    "\u2220": "\\angle ",
    "\u0394": "\\Delta ",
    "\u0393": "\\Gamma ",
    "\u03a9": "\\Omega ",
    "\u03b1": "\\alpha ",
    "\u03b2": "\\beta ",
    "\u03b3": "\\gamma ",
    "\u03b4": "\\delta ",
    "\u03b5": "\\epsilon ",
    "\u03b8": "\\theta ",
    "\u03bb": "\\lambda ",
    "\u03bc": "\\mu ",
    "\u03c3": "\\sigma ",
    "\u03c6": "\\phi ",
    "\u03c9": "\\omega ",
    "\uff0c": ",",
    "\u2205": "\\emptyset ",
    "\u211d": "\\mathbb{R}",
    "\u2124": "\\mathbb{Z}",
    "\u2115": "\\mathbb{N}",
    "\u27e8": "\\langle ",
    "\u27e9": "\\rangle ",
    "\u2032": "'",
    "\uff05": "%",
    "\u2026": "...",
    "\u2022": "",
}
_UNICODE = str.maketrans(_SIGNS)
_HIGH = "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207a\u207b\u207d\u207e\u207f"
_LOW = "\u2080\u2081\u2082\u2083\u2084\u2085\u2086\u2087\u2088\u2089"
_SUPERSCRIPTS = str.maketrans(_HIGH, "0123456789+-()n")
_SUBSCRIPTS = str.maketrans(_LOW, "0123456789")
_RAISED = re.compile(f"[{_HIGH}]+")
_LOWERED = re.compile(f"[{_LOW}]+")
_ROOT = re.compile("\u221a\\s*(?:(\\d+(?:\\.\\d+)?|[a-zA-Z])|\\(([^()]*)\\)|(?=\\{))")
_BOLD = re.compile(r"(?<![\w)}\]*])\*\*(?=\S)([^*]+)(?<=\S)\*\*(?![\w({*])")
_ITALIC = re.compile(r"\*(?=[^\s*])([^*]+)(?<=[^\s*])\*|__([^_]+)__|_([^_]+)_")
_INLINE = re.compile(r"(?<!\\)\$(?=[^\s$])([^$]*)(?<=[^\s\\])\$(?!\d)|\\\((.*?)\\\)")
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALE_WORD = re.compile(
    r"(?<![\d.,\w}])(\d{1,3}(?:,\d{3})+|\d{1,15})(?:\.(\d{1,15}))?\s*(?:\\text\s*\{\s*)?"
    r"\b(hundred|thousand|million|billion|trillion)s?\b(?:\s*\})?",
    re.IGNORECASE,
)
_INVERSE = {"asin": "arcsin", "acos": "arccos", "atan": "arctan"}
_FUNCTION = re.compile(
    r"(?<![a-zA-Z\\])(arcsin|arccos|arctan|asin|acos|atan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc"
    r"|log|ln|lg)(?![a-wyzA-Z])(?!x[a-z])"
)
_CALL = re.compile(r"(?<![a-zA-Z\\])(sqrt|cbrt|exp|abs)\s*\(|\\exp\s*\(|\\exp\s*\\left\s*\(")
_WORDS = (
    (re.compile(r"(?<![a-zA-Z\\])pi(?![a-zA-Z])"), r"\\pi "),
    (re.compile(r"(?<![a-zA-Z\\])(?:infinity|infty|inf|oo)(?![a-zA-Z])"), r"\\infty "),
    (re.compile(r"(?<![a-zA-Z\\])(theta|alpha|beta|gamma|lambda)(?![a-zA-Z])"), r"\\\1 "),
    (re.compile(r"(?<=[\d})a-z])\*\*(?=[-({\da-z])"), "^"),
    (re.compile(r"\^\s*\(([^()]*)\)"), r"^{\1}"),
    (re.compile(r"\^\s*(-\s?\d+|\d{2,})(?![\d.])"), r"^{\1}"),
    (re.compile(r"(?<![a-zA-Z\\])sqrt\s*(?=[\d{a-z])"), r"\\sqrt "),
    (re.compile(r"<=|=<"), r"\\le "),
    (re.compile(r">="), r"\\ge "),
    (re.compile(r"!="), r"\\ne "),
    (re.compile(r"(?<!\\)\*"), r" \\cdot "),
)


def latex(text: str) -> str:
    """The text with everything that has a LaTeX form in that form."""
    text = plain(text)
    text = _ROOT.sub(lambda m: f"\\sqrt{{{m[1] or m[2]}}}" if m[1] or m[2] else "\\sqrt", text)
    text = _RAISED.sub(lambda m: f"^{{{m[0].translate(_SUPERSCRIPTS)}}}", text)
    text = _LOWERED.sub(lambda m: f"_{{{m[0].translate(_SUBSCRIPTS)}}}", text)
    text = text.translate(_UNICODE)
    text = _SCALE_WORD.sub(_scaled, text)
    text = _calls(text)
    text = _FUNCTION.sub(lambda m: f"\\{_INVERSE.get(m[1], m[1])} ", text)
    for pattern, replacement in _WORDS:
        text = pattern.sub(replacement, text)
    return text


def plain(text: str) -> str:
    """The text without Markdown and without the dollar signs around its pieces."""
    text = text.strip().replace("`", "")
    text = _BOLD.sub(r"\1", text)
    italic = _ITALIC.fullmatch(text)
    if italic:
        text = italic[1] or italic[2] or italic[3]
    return _INLINE.sub(lambda m: m[1] if m[1] is not None else m[2], text)


def _scaled(match: re.Match[str]) -> str:
    """`3 million` and `2.5 thousand` in digits."""
    decimals = match[2] or ""
    zeros = _SCALES[match[3].lower()]
    digits = match[1].replace(",", "") + decimals.ljust(zeros, "0")
    point = len(digits) - max(0, len(decimals) - zeros)
    return f"{digits[:point]}.{digits[point:]}" if point < len(digits) else digits


def _calls(text: str) -> str:
    """`sqrt(..)`, `cbrt(..)`, `exp(..)` and `abs(..)` with whatever parentheses are inside."""
    place = 0
    while match := _CALL.search(text, place):
        end = _closing(text, match.end())
        if end is None:
            place = match.end()
            continue
        inner = text[match.end() : end]
        inner = re.sub(r"\\right\s*$", "", inner)
        name = match[1] or "exp"
        written = {
            "sqrt": f"\\sqrt{{{inner}}}",
            "cbrt": f"\\sqrt[3]{{{inner}}}",
            "exp": f"e^{{{inner}}}",
            "abs": f"|{inner}|",
        }[name]
        text = text[: match.start()] + written + text[end + 1 :]
        place = match.start()
    return text


def _closing(text: str, place: int) -> int | None:
    """Index of the parenthesis that closes one opened before `place`."""
    depth = 1
    for index in range(place, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if depth == 0:
            return index
    return None
