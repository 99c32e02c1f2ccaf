"""Brings the many spellings of one LaTeX answer together, without changing what it means."""

import re

from components.grading.math.boxed import closing_brace

_SIGNS = {
    "\u2212": "-",
    "\u2013": "-",
    "\u2014": "-",
    "\u00d7": "\\times ",
    "\u00b7": "\\cdot ",
    "\u22c5": "\\cdot ",
    "\u00f7": "/",
    "\u03c0": "\\pi ",
    "\u221e": "\\infty ",
    "\u00b0": "^\\circ ",
    "\u222a": "\\cup ",
    "\u2229": "\\cap ",
    "\u2208": "\\in ",
    "\u2264": "\\le ",
    "\u2265": "\\ge ",
    "\u2260": "\\ne ",
    "\u00b1": "\\pm ",
    "\u00b2": "^2",
    "\u00b3": "^3",
    "\u00bd": "\\frac{1}{2}",
    "\u00bc": "\\frac{1}{4}",
    "\u00be": "\\frac{3}{4}",
    "\u00a0": " ",
    "\u2009": " ",
    "\u202f": " ",
    "\u2220": "\\angle ",
    "\u03b8": "\\theta ",
    "\u03b1": "\\alpha ",
    "\u03b2": "\\beta ",
    "\uff0c": ",",
    "\u2205": "\\emptyset ",
    "\u211d": "\\mathbb{R}",
}
_UNICODE = str.maketrans(_SIGNS)
_ROOT = re.compile("\u221a\\s*(?:(\\d+(?:\\.\\d+)?|[a-zA-Z])|\\(([^()]*)\\)|(?=\\{))")
_WRAPS = (("$$", "$$"), ("$", "$"), ("\\[", "\\]"), ("\\(", "\\)"))
_RENAMED = (
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (
        re.compile(
            r"\\(?:mbox|textbf|textit|textrm|textsf|textnormal|textup|hbox|operatorname\*?)(?=\s*\{)"
        ),
        r"\\text",
    ),
    (re.compile(r"\\leq?(?:slant)?(?![a-zA-Z])"), r"\\le "),
    (re.compile(r"\\geq?(?:slant)?(?![a-zA-Z])"), r"\\ge "),
    (re.compile(r"\\neq?(?![a-zA-Z])"), r"\\ne "),
    (re.compile(r"\\(?:varnothing|empty)(?![a-zA-Z])"), r"\\emptyset "),
    (re.compile(r"\\lbrace(?![a-zA-Z])"), r"\\{"),
    (re.compile(r"\\rbrace(?![a-zA-Z])"), r"\\}"),
    (re.compile(r"\\dots[cb]?(?![a-zA-Z])|\\ldots(?![a-zA-Z])"), r"\\cdots "),
    (re.compile(r"\\(?:degree|textdegree)(?![a-zA-Z])"), r"^\\circ "),
    (re.compile(r"\^\s*\{\s*\\circ\s*\}"), r"^\\circ "),
    (re.compile(r"\^\s*\\circ(?![a-zA-Z])"), r"^\\circ "),
)
_SIZES = re.compile(r"\\(?:left|right)\s*(?=[\[\](){}|.\\<>])\.?|\\[bB]igg?[lrm]?(?![a-zA-Z])")
_STYLES = re.compile(r"\\(?:displaystyle|textstyle|limits|rm|bf|it)(?![a-zA-Z])")
_THOUSANDS = re.compile(r"(?<=\d)(?:,\\!|\{,\}|,\\,)\s*(?=\d{3}(?!\d))")
_GROUPED = re.compile(r"(?<=\d)(?:\\,|\\ |~|\\;|\\:)(?=\d{3}(?!\d))")
_SPACES = re.compile(r"(?<!\\)\\[,;:!>]|(?<!\\)\\ |~|\\q?quad(?![a-zA-Z])|\s+")
_LEAD_IN = re.compile(
    r"(?:so|thus|hence|therefore)?,? ?(?:the )?(?:final )?answer ?(?:is|:) ?:?", re.IGNORECASE
)
_PLAIN_WORDS = (
    (re.compile(r"(?<![a-zA-Z\\])pi(?![a-zA-Z])"), r"\\pi "),
    (re.compile(r"(?<![a-zA-Z\\])(?:infinity|infty|oo)(?![a-zA-Z])"), r"\\infty "),
    (re.compile(r"(?<![a-zA-Z\\])sqrt\s*\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"\^\s*\(([^()]*)\)"), r"^{\1}"),
)
_ROMAN = re.compile(r"\\(?:mathrm|mathit|mathbf|mathsf|boldsymbol|bm)\s*(?=\{)")
_FRAC = re.compile(r"\\frac\s*(?:\{|(\d)|([a-zA-Z])|(\\[a-zA-Z]+))")
_SQRT = re.compile(r"\\sqrt\s*(\d|[a-zA-Z](?![a-zA-Z]))")


def clean(text: str) -> str:
    """One line of LaTeX without wrappers, sizes, styles and odd spacing.

    Unknown commands stay as they are.
    """
    text = text.strip()
    lead_in = _LEAD_IN.match(text)
    text = _unwrap(text[lead_in.end() :].strip() if lead_in else text)
    text = _ROOT.sub(lambda m: f"\\sqrt{{{m[1] or m[2]}}}" if m[1] or m[2] else "\\sqrt", text)
    text = text.translate(_UNICODE)
    text = _SIZES.sub("", text)
    text = _THOUSANDS.sub(",", text)
    text = _GROUPED.sub("", text)
    for pattern, replacement in (*_RENAMED, *_PLAIN_WORDS):
        text = pattern.sub(replacement, text)
    text = _STYLES.sub(" ", text)
    text = _SPACES.sub(" ", text)
    text = _romans(text)
    text = _fractions(text)
    text = _SQRT.sub(r"\\sqrt{\1}", text)
    text = re.sub(r"\s+", " ", text).strip()
    return _unwrap(_without_stop(text))


def balanced(text: str) -> bool:
    """True when all braces pair up."""
    depth, index = 0, 0
    while index < len(text):
        if text[index] == "\\":
            index += 2
            continue
        depth += (text[index] == "{") - (text[index] == "}")
        if depth < 0:
            return False
        index += 1
    return depth == 0


def _without_stop(text: str) -> str:
    text = text.rstrip()
    while text.endswith((".", ",", ";")) and not text.endswith("\\,"):
        text = text[:-1].rstrip()
    return text


def _unwrap(text: str) -> str:
    while True:
        before = text
        for opening, closing in _WRAPS:
            inner = text[len(opening) : -len(closing)]
            if (
                len(text) > len(opening) + len(closing)
                and text.startswith(opening)
                and text.endswith(closing)
                and not text.endswith("\\" + closing)
                and not _bare(opening, inner)
                and not _bare(closing, inner)
            ):
                text = inner.strip()
        boxed = re.match(r"\\(?:boxed|fbox)\s*(?=\{)", text)
        if boxed and closing_brace(text, boxed.end()) == len(text) - 1:
            text = text[boxed.end() + 1 : -1].strip()
        if text.startswith("{") and closing_brace(text, 0) == len(text) - 1:
            text = text[1:-1].strip()
        if text == before:
            return text


def _bare(mark: str, text: str) -> bool:
    """True when `mark` stands in the text unescaped."""
    return re.search(rf"(?<!\\){re.escape(mark)}", text) is not None


def _romans(text: str) -> str:
    r"""`\mathrm{e}` is e, and so is any style around one letter or math.

    Several letters are words.
    """
    while match := _ROMAN.search(text):
        end = closing_brace(text, match.end())
        if end is None:
            return text
        inner = text[match.end() + 1 : end].strip()
        word = re.fullmatch(r"[A-Za-z/. ]{2,}", inner) and "math" in match[0] and "rm" in match[0]
        body = f"\\text{{{inner}}}" if word else f"{inner} "
        text = text[: match.start()] + body + text[end + 1 :]
    return text


def _fractions(text: str) -> str:
    r"""`\frac12`, `\frac 3{19}` and `\frac{270}7` with braces."""
    done, place = "", 0
    while match := _FRAC.search(text, place):
        done += text[place : match.start()]
        first, after = _argument(text, match.start() + len("\\frac"))
        second, end = _argument(text, after) if first is not None else (None, after)
        if first is None or second is None:
            return done + text[match.start() :]
        done += f"\\frac{{{_fractions(first)}}}{{{_fractions(second)}}}"
        place = end
    return done + text[place:]


def _argument(text: str, place: int) -> tuple[str | None, int]:
    while place < len(text) and text[place] == " ":
        place += 1
    if place >= len(text):
        return None, place
    if text[place] == "{":
        end = closing_brace(text, place)
        return (None, place) if end is None else (text[place + 1 : end], end + 1)
    command = re.match(r"\\[a-zA-Z]+", text[place:])
    width = len(command[0]) if command else 1
    return text[place : place + width], place + width
