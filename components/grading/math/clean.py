"""Brings the many spellings of one LaTeX answer together, without changing what it means."""

import re

from components.grading.math import spelling
from components.grading.math.boxed import closing_brace
from components.grading.math.determinants import expand_determinants

_WRAPS = (("$$", "$$"), ("$", "$"), ("\\[", "\\]"), ("\\(", "\\)"))
# {}_{10}C_3 and ^{10}C_3, as calculators write binomials; not x^{10}C_3.
_COMBINATIONS = re.compile(
    r"(?:\{ ?\} ?|(?<![\w)}\]]))[_^] ?\{?(\w+)\}? ?\{? ?(?:C|\\text\{C\}) ?\}? ?_ ?\{?(\w+)\}?"
)
_RENAMED = (
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (
        re.compile(
            r"\\(?:mbox|textbf|textit|textrm|textsf|textnormal|textup|hbox|operatorname\*?)(?=\s*\{)"
        ),
        r"\\text",
    ),
    (re.compile(r"\{([^{}]*)\\choose(?![a-zA-Z])([^{}]*)\}"), r"\\binom{\1}{\2}"),
    (_COMBINATIONS, r"\\binom{\1}{\2}"),
    (re.compile(r"(\w+) ?\\choose(?![a-zA-Z]) ?(\w+)"), r"\\binom{\1}{\2}"),
    (re.compile(r"\\leq?(?:slant)?(?![a-zA-Z])"), r"\\le "),
    (re.compile(r"\\geq?(?:slant)?(?![a-zA-Z])"), r"\\ge "),
    (re.compile(r"\\neq?(?![a-zA-Z])"), r"\\ne "),
    (re.compile(r"\\(?:varnothing|empty)(?![a-zA-Z])"), r"\\emptyset "),
    (re.compile(r"\\lbrace(?![a-zA-Z])"), r"\\{"),
    (re.compile(r"\\rbrace(?![a-zA-Z])"), r"\\}"),
    (re.compile(r"\\dots[cb]?(?![a-zA-Z])|\\ldots(?![a-zA-Z])"), r"\\cdots "),
    (re.compile(r"(?<=[,; ])\.\.\.(?!\.)"), r"\\cdots "),
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
    r"(?:(?:so|thus|hence|therefore|then|and|finally)[,:]?\s+)?"
    r"(?:(?:(?:the|my|our)\s+)?(?:(?:final|correct|required|exact)\s+)?"
    r"(?:answer|result|solution|value)s?\s*(?:is|are|:|=|equals)(?:\s*(?:therefore|thus|:|=))?"
    r"|(?:we|i)\s+(?:get|have|find|obtain)(?:\s+that)?|it\s+is|it's|\\therefore|\u2234|\#{2,4}|=)"
    r"(?![a-zA-Z])\s*:?",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"\\(?:text|mbox)\s*\{([^{}]*)\}")
_TRAIL = re.compile(
    r"\s+(?:is|are)\s+(?:(?:the|our|my)\s+)?(?:(?:final|correct|required)\s+)?answers?\s*[.!]?$",
    re.IGNORECASE,
)
_ANGLES = re.compile(r"^<([^<>=]*,[^<>=]*)>$")  # a vector as programs write it
_EITHER = re.compile(r"(?:either|both)\s+(?=\S)", re.IGNORECASE)
_ROMAN = re.compile(r"\\(?:mathrm|mathit|mathbf|mathsf|boldsymbol|bm|underline)\s*(?=\{)")
_FRAC = re.compile(r"\\frac\s*(?:\{|(\d)|([a-zA-Z])|(\\[a-zA-Z]+))")
_SQRT = re.compile(r"\\sqrt\s*(\d|[a-zA-Z](?![a-zA-Z]))")


def clean(text: str) -> str:
    """One line of LaTeX without wrappers, sizes, styles and odd spacing; other commands stay."""
    text = _unwrap(spelling.plain(_unwrap(text.strip())))
    sentence = _SENTENCE.fullmatch(text)
    text = sentence[1] if sentence and _LEAD_IN.match(sentence[1]) else text
    lead_in = _LEAD_IN.match(text)
    if lead_in and lead_in.end() < len(text):
        text = _unwrap(spelling.plain(text[lead_in.end() :]))
    text = _EITHER.sub("", _TRAIL.sub("", text), count=1)
    text = _ANGLES.sub(r"\\langle \1\\rangle ", spelling.latex(_unboxed(text)))
    text = _SIZES.sub("", text)
    text = _THOUSANDS.sub(",", text)
    text = _GROUPED.sub("", text)
    for pattern, replacement in _RENAMED:
        text = pattern.sub(replacement, text)
    text = _STYLES.sub(" ", text)
    text = _SPACES.sub(" ", text)
    text = _romans(text)
    text = _fractions(text)
    text = _SQRT.sub(r"\\sqrt{\1}", text)
    text = expand_determinants(re.sub(r"\s+", " ", text).strip())
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
    while text.endswith((".", ",", ";", "\\")) and not text.endswith("..."):
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
            inner = text[1:-1].strip()
            if re.search(r"(?<!\{),(?!\d{3}\b|\}|\\)", inner):
                return f"\\{{{inner}\\}}"  # a set whose braces lack their backslashes
            text = inner
        if text == before:
            return text


def _unboxed(text: str) -> str:
    r"""Boxes within a longer text replaced by what they hold."""
    while box := re.search(r"\\(?:boxed|fbox)\s*(?=\{)", text):
        end = closing_brace(text, box.end())
        if end is None:
            return text
        text = text[: box.start()] + text[box.end() + 1 : end] + text[end + 1 :]
    return text


def _bare(mark: str, text: str) -> bool:
    """True when `mark` stands in the text unescaped."""
    return re.search(rf"(?<!\\){re.escape(mark)}", text) is not None


def _romans(text: str) -> str:
    r"""Styles taken off: `\mathrm{e}` is e; several letters in `\mathrm` are words."""
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
