"""What a lone name is: the left side of `name = value` that may be left out."""

import re

_LETTER = r"(?:[A-Za-z]|\\(?!pi(?![a-z])|infty)[a-z]+(?:\{[A-Za-z]\})?)"
_INDEX = r"(?: ?_ ?(?:\w|\{[^{}]*\}))?'*"
_SYMBOL = rf"{_LETTER}{_INDEX}"
_FUNCTION = (
    rf"(?:\\text ?\{{ ?)?[A-Za-z]{{1,4}}(?: ?\}})?(?: ?\^ ?\{{? ?-1 ?\}}?)?{_INDEX} ?\([^()=]*\)"
)
_SEGMENT = (
    r"(?:\\(?:angle|triangle|overline|overrightarrow|vec|measuredangle|Delta) ?)?"
    r"\{? ?[A-Z]{1,4} ?\}?"
)
_CHANCE = (
    r"(?:\\(?:Pr|text ?\{ ?(?:P|Pr|E|Var) ?\}|mathbb ?\{? ?[PE] ?\}?)|Pr|P|E|Var) ?"
    r"(?:\([^()]*\)|\[[^\[\]]*\])"
)
_COLUMN = (
    r"\\begin ?\{[pb]matrix\} ?[A-Za-z](?: ?(?:\\\\|&) ?[A-Za-z])+ ?(?:\\\\ ?)?"
    r"\\end ?\{[pb]matrix\}"
)
_WORDS = r"(?:\\text ?\{[^{}]*[A-Za-z]{2}[^{}]*\} ?)+|[A-Za-z]{3,}(?: [A-Za-z]+)*"
_LONE = re.compile(
    rf"(?:{_SYMBOL}|{_FUNCTION}|{_SEGMENT}|m ?\\angle ?[A-Z]{{1,3}}|{_WORDS}"
    rf"|\| ?{_SEGMENT} ?\||\| ?[a-z] ?\||\[ ?[A-Z]{{3,5}} ?\]"
    rf"|\\(?:vec|mathbf|overrightarrow) ?\{{ ?[A-Za-z]{{1,2}} ?\}}"
    rf"|\(? ?{_SYMBOL}(?: ?[,:] ?{_SYMBOL})+ ?\)?|{_SEGMENT}(?: ?: ?{_SEGMENT})+"
    rf"|{_CHANCE}|{_COLUMN})"
)
_FUNCTION_NAMES = re.compile(r"\\?(?:sin|cos|tan|cot|sec|csc|log|ln|exp|sqrt|frac)(?![a-z])")


def is_name(text: str) -> bool:
    """True for one name: `x`, `a_1`, `f(x)`, `|AB|`, an angle, words, a tuple of names."""
    text = text.strip()
    return bool(_LONE.fullmatch(text)) and not _FUNCTION_NAMES.match(text)


def is_variable(text: str) -> bool:
    """True for a variable: one letter, also a Greek one or one with an index."""
    text = text.strip()
    return bool(re.fullmatch(_SYMBOL, text)) and not _FUNCTION_NAMES.match(text)
