"""Reads the outer shape of a cleaned answer: a list, an interval, a matrix, words and so on."""

import re
from fractions import Fraction

from components.grading.math.bases import in_base
from components.grading.math.brackets import OPENERS, TOKEN, closes_at_end, split
from components.grading.math.exact import number
from components.grading.math.numerals import spelled_number
from components.grading.math.ratios import ratio
from components.grading.math.rules import rule
from components.grading.math.shapes import (
    ORDER,
    REALS,
    Atom,
    Choice,
    Compound,
    Group,
    Matrix,
    Quantity,
    Relation,
    Ruled,
    Shape,
    Text,
    Union,
)
from components.grading.math.units import split_compound, split_unit
from components.grading.math.words import WORDS, fold, is_words

MAX_DEPTH = 12

_MATRIX = re.compile(
    r"(.*?)\\begin ?\{([pbB]?matrix|smallmatrix|array)\}(?: ?\{[lcr| ]*\})?(.*)\\end ?\{\2\}"
    r"( ?\^ ?\{? ?(?:T|\\top|\\intercal|\\text ?\{ ?T ?\}) ?\}?)?",
    re.DOTALL,
)
_PERCENT = re.compile(
    r"(.*?) ?(?:\\?%|\\text ?\{ ?(?:percent|per cent|pct)\.? ?\}|percent|per cent|pct)", re.DOTALL
)
_AND = re.compile(r" ?\\text ?\{ ?,? ?(?:and|or) ?\} ?| (?:and|or) ")
_OR = re.compile(r" ?\\text ?\{ ?,? ?or ?\} ?| or |\\lor(?![a-zA-Z])|\\vee(?![a-zA-Z])")
_CASES = re.compile(
    r"\\begin ?\{(cases|aligned|align\*?|array|gathered)\}(?: ?\{[lcr| ]*\})?(.*)\\end ?\{\1\}",
    re.DOTALL,
)
_CONDITION = re.compile(r"^(?:\\text ?\{ ?)?(?:if|for|when)(?![a-z]) ?:? ?\}?\s*", re.IGNORECASE)
_BUILDER = re.compile(
    r"\\\{ ?[A-Za-z](?: ?\\in ?\\mathbb ?\{ ?R ?\})? ?(?:\\mid|\\vert|\||:) ?(.*[^\\ ]) ?\\\}",
    re.DOTALL,
)
_REALS = re.compile(
    r"\\mathbb ?\{? ?R ?\}?"
    r"|(?:\\text ?\{ ?)?(?:the set of )?(?:all )?reals?(?: numbers?)?(?: ?\})?",
    re.IGNORECASE,
)
_EXCEPT = re.compile(
    r"(?:\\mathbb ?\{? ?R ?\}?) ?(?:\\setminus|\\backslash|-|\\text ?\{ ?except ?\}) ?\\\{(.*)\\\}"
)
_NOT_THESE = re.compile(r"([A-Za-z]) ?\\ne(?![a-z])((?:(?!\\ne(?![a-z])|[=<>]).)*)")
_EMPTY = re.compile(
    r"\\emptyset|\\\{ ?\\\}|\\text ?\{ ?(?:the )?empty set ?\}|(?:the )?empty set", re.I
)
_CHOICE = re.compile(
    r"\\text ?\{ ?\(?([A-J])\)?[.:)]? ?\} ?(?:\\ )?[.:]? ?(\S.*)|\(?([A-J])[).:] ?(\S.*)", re.DOTALL
)
_OPEN_ENDS = re.compile(r"(\]|\[)([^\[\]]*[,;][^\[\]]*)(\[|\])")  # ]a, b[ and its halves
_MEMBER = re.compile(r"[A-Za-z] ?\\in(?![a-zA-Z]) ?")
_RELATIONS = {
    "=": "=",
    "<": "<",
    ">": ">",
    "\\le": "<=",
    "\\ge": ">=",
    "\\ne": "!=",
    "\\lt": "<",
    "\\gt": ">",
    "\\equiv": "=",
}


def read(text: str, depth: int = 0) -> Shape:
    """The shape of a cleaned answer. Never fails: what has no outer shape is an Atom or Text."""
    text = text.strip()
    if depth > MAX_DEPTH:
        return Text(fold(text))
    special = in_base(text) or _special(text, depth)
    if special is not None:
        return special
    listed = WORDS.fullmatch(text)
    if listed and (_AND.search(listed[1]) or "," in listed[1]):
        return read(listed[1], depth + 1)
    head, unit = split_unit(text)
    if unit is not None and number(head) is not None:
        return Quantity(Atom(head), unit)
    structured = _structured(text, depth)
    if structured is not None:
        return structured
    percent = _PERCENT.fullmatch(text)
    if percent and percent[1]:
        return Quantity(read(percent[1], depth + 1), "%")
    if is_words(text):
        spelled = spelled_number(WORDS.sub(lambda m: m[1], text))
        return Text(fold(text)) if spelled is None else Atom(written(spelled))
    if unit is not None and head and head != text:
        return Quantity(read(head, depth + 1), unit)
    inner = WORDS.fullmatch(text)
    if inner:
        return read(inner[1], depth + 1)
    return Atom(text)


def _special(text: str, depth: int) -> Shape | None:
    """Sets with a name or a rule, systems in braces, and choices with their text."""
    if _REALS.fullmatch(text):
        return REALS
    if _EMPTY.fullmatch(text):
        return Group("{", "}", ())
    excluded = _EXCEPT.fullmatch(text)
    if excluded:
        points = split(excluded[1], (",", ";"))
        return Relation(("x", ",".join(points)), ("!=",))
    not_these = _NOT_THESE.fullmatch(text)
    if not_these:
        points = [sign for point in split(not_these[2], (",", ";")) for sign in plus_minus(point)]
        return Relation((not_these[1], ",".join(points)), ("!=",))
    builder = _BUILDER.fullmatch(text)
    if builder:
        return read(builder[1], depth + 1)
    cases = _cases(text, depth)
    if cases is not None:
        return cases
    compound = split_compound(text)
    if compound:
        return Compound(tuple((unit, Atom(value)) for unit, value in compound))
    choice = _CHOICE.fullmatch(text)
    if choice and depth == 0:
        letter, answer = (choice[1], choice[2]) if choice[1] else (choice[3], choice[4])
        if answer[0] not in "+-*/^_=<>(,;)" and not answer.startswith(("\\cdot", "\\times")):
            return Choice(letter, read(answer, depth + 1))
    return None


def _cases(text: str, depth: int) -> Group | None:
    """A system of equations as a list, or the branches of a function as a set of pairs."""
    match = _CASES.fullmatch(text)
    if match is None or (match[1] == "array" and not _relation(match[2])):
        return None
    body = re.sub(r"&(?=\s*(?:=|<|>|\\[lg]e(?![a-z])))", "", match[2])
    rows = [row.strip(" ,;") for row in re.split(r"\\\\", body) if row.strip(" ,;")]
    cells = [[cell.strip(" ,;") for cell in row.split("&")] for row in rows]
    if all(len(row) == 1 for row in cells):
        return Group("", "", tuple(read(row[0], depth + 1) for row in cells))
    if match[1] != "cases" or not all(len(row) == 2 for row in cells):
        return None
    pairs = [(value, _CONDITION.sub("", condition)) for value, condition in cells]
    branches = (tuple(read(part, depth + 1) for part in pair) for pair in pairs)
    return Group("{", "}", tuple(Group("(", ")", branch) for branch in branches))


def written(value: Fraction) -> str:
    """A number in LaTeX, as the parser reads it without rounding or separators."""
    sign, top = "-" if value < 0 else "", abs(value.numerator)
    if value.denominator == 1:
        return f"{sign}{top}"
    return f"{sign}\\frac{{{top}}}{{{value.denominator}}}"


def _structured(text: str, depth: int) -> Shape | None:
    member = _MEMBER.match(text)
    if member:
        text = text[member.end() :]
    if number(text) is not None:
        return Atom(text)
    matrix = _matrix(text, depth)
    if matrix is not None:
        return matrix
    alternatives = [part for part in _OR.split(text) if part.strip()]
    if len(alternatives) > 1:
        relations = [_relation(part.strip()) for part in alternatives]
        if all(relation and set(relation.signs) <= ORDER for relation in relations):
            return Union(tuple(read(part, depth + 1) for part in alternatives))
    items = split(_AND.sub(", ", text), (",", ";"))
    if len(items) > 1:
        parts = [part for item in items if item.strip() for part in plus_minus(item)]
        return Group("", "", tuple(read(part, depth + 1) for part in parts))
    parts = split(text, ("\\cup",))
    if len(parts) > 1:
        return Union(tuple(read(part, depth + 1) for part in parts))
    relation = _relation(text)
    if relation is not None:
        return relation
    ends = _OPEN_ENDS.fullmatch(text)
    if ends:
        opening, closing = "(" if ends[1] == "]" else "[", ")" if ends[3] == "[" else "]"
        text = f"{opening}{ends[2]}{closing}"
    delimited = _delimited(text, depth)
    signed = plus_minus(text)
    if delimited is None and len(signed) > 1:
        return Group("", "", tuple(read(part, depth + 1) for part in signed))
    return ratio(text) if delimited is None and split_unit(text)[1] is None else delimited


def _matrix(text: str, depth: int) -> Matrix | None:
    """A matrix, with a factor in front multiplied in and a `T` behind it carried out."""
    match = _MATRIX.fullmatch(text)
    if match is None or "\\begin" in match[1] + match[3]:
        return None
    factor = match[1].removesuffix("\\cdot").removesuffix("\\times").strip()
    if re.search(r"[=<>]|\\[lgn]e(?![a-z])", factor) or len(split(factor, (",", ";", "+"))) > 1:
        return None
    factor = "-1" if factor == "-" else factor
    lines = [line for line in re.split(r"\\\\(?:\[[^\]]*\])?", match[3]) if line.strip()]
    cells = [[cell.strip() for cell in line.split("&")] for line in lines]
    if match[4] and len({len(row) for row in cells}) == 1:
        cells = [list(column) for column in zip(*cells, strict=True)]
    if factor:
        cells = [[f"({factor})\\cdot ({cell})" for cell in row] for row in cells]
    return Matrix(tuple(tuple(read(cell, depth + 1) for cell in row) for row in cells))


def _delimited(text: str, depth: int) -> Shape | None:
    """A tuple, interval or set; brackets around a single item are dropped."""
    tokens = TOKEN.findall(text)
    if len(tokens) < 3 or tokens[0] not in OPENERS or tokens[-1] not in (*OPENERS.values(),):
        return None
    if not closes_at_end(tokens):
        return None
    opening, closing = tokens[0], tokens[-1]
    if (opening == "\\{") != (closing == "\\}"):
        return None
    inner = "".join(tokens[1:-1]).strip()
    ruled = rule(inner) if opening == "\\{" else None
    if ruled is not None:
        return Ruled(*(read(part, depth + 1) for part in ruled))
    items = split(_AND.sub(", ", inner) if opening == "\\{" else inner, (",", ";"))
    if opening == "\\{":
        parts = [part for item in items for part in plus_minus(item)]
        return Group("{", "}", tuple(read(part, depth + 1) for part in parts if part.strip()))
    if len(items) == 1:
        return read(inner, depth + 1) if (opening, closing) in (("(", ")"), ("[", "]")) else None
    rows = [read(item, depth + 1) for item in items] if opening == "[" else []
    if rows and all(isinstance(row, Group) and row.opening == "[" for row in rows):
        return Matrix(tuple(row.items for row in rows if isinstance(row, Group)))
    if (opening, closing) == ("[", "]") and len(items) > 2:
        opening = closing = ""  # a list as programs write it
    opening, closing = opening.replace("\\langle", "("), closing.replace("\\rangle", ")")
    return Group(opening, closing, tuple(read(item, depth + 1) for item in items))


def plus_minus(text: str) -> list[str]:
    r"""Both readings of an item with `\pm` (and `\mp`), or the item itself."""
    if re.search(r"\\(?:pm|mp)(?![a-zA-Z])", text) is None:
        return [text]
    upper = re.sub(r"\\pm(?![a-zA-Z])", "+", re.sub(r"\\mp(?![a-zA-Z])", "-", text))
    lower = re.sub(r"\\pm(?![a-zA-Z])", "-", re.sub(r"\\mp(?![a-zA-Z])", "+", text))
    return [upper, lower]


def _relation(text: str) -> Relation | None:
    sides: list[str] = []
    signs: list[str] = []
    current, depth = "", 0
    for token in TOKEN.findall(text):
        depth += (token in OPENERS or token == "{") - (token in OPENERS.values() or token == "}")
        sign = _RELATIONS.get(token) if depth == 0 else None
        if sign is None:
            current += token
            continue
        if sign == "=" and not current.strip() and signs and signs[-1] in "<>":
            signs[-1] += "="
            continue
        sides.append(current.strip())
        signs.append(sign)
        current = ""
    sides.append(current.strip())
    if not signs or not all(sides):
        return None
    return Relation(tuple(sides), tuple(signs))
