"""Equality of two formulas, which math-verify parses.

Values with 50 digits decide, at random points where there are variables; where an expression has no
values, math-verify's own `verify` does. An odd root of a real number is its real root.
"""

import logging
import random
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import sympy
from latex2sympy2_extended.math_normalization import NormalizationConfig
from math_verify import parse as math_verify_parse
from math_verify import verify as math_verify_verify
from math_verify.parser import LatexExtractionConfig

logging.getLogger("math_verify").setLevel(logging.ERROR)  # its warning about switched-off timeouts

DIGITS = 50
CLOSE = sympy.Float(10) ** -38
POINTS = 4
_NORMALIZATION = NormalizationConfig(
    basic_latex=True,
    units=False,
    malformed_operators=True,
    nits=False,
    boxed="none",
    equations=False,
)
_EXTRACTION = [LatexExtractionConfig(normalization_config=_NORMALIZATION)]
_GREEK = (
    "alpha beta gamma delta zeta eta kappa lambda mu nu xi rho sigma tau phi chi psi omega".split()
)
_UNREADABLE = re.compile(
    r"['\"\u2032]|\\(?:cdots|prime|text|bmod|pmod)|_ ?_"
    r"|(?<![\^_\d])\d+ \d|(?<![a-zA-Z\\])[A-Za-z]{7,}"
)
_MIXED = re.compile(r"(?<![\w}.^_])(\d+) ?\\frac\{(\d+)\}\{(\d+)\}")
_ANGLE_FUNCTION = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-gi-z])")
_DEGREES = re.compile(
    r"(\d+(?:\.\d+)?|\\frac\{[^{}]*\}\{[^{}]*\}|\([^()]*\)|\\?[a-zA-Z]+) ?\^\\circ"
)
# Numbers in parentheses behind a number or each other, which the parser would read as digits.
_PRODUCT = re.compile(r"((?<![\w^_.}\\])\d+|\)) ?(?=\()")
_DECIMAL = re.compile(r"(?<![\d.])(\d*)\.(\d+)(?![\d.])")


def rename_capitals(latexes: Sequence[str]) -> list[str]:
    """Greek letters that occur nowhere in place of capitals, which the parser would make small."""
    joined = " ".join(latexes)
    capitals = sorted(set(_capitals(joined)))
    free = [name for name in _GREEK if f"\\{name}" not in joined]
    names = dict(zip(capitals, free, strict=False))
    return [_rename(latex, names) for latex in latexes]


@lru_cache(maxsize=256)
def parse(latex: str) -> sympy.Basic | None:
    """The expression, or None when the formula cannot be read whole."""
    if _UNREADABLE.search(latex) or "$" in latex:
        return None
    prepared = _DECIMAL.sub(_as_fraction, _MIXED.sub(_as_improper, in_radians(latex)))
    prepared = _PRODUCT.sub(r"\1\\cdot ", prepared)
    expressions = math_verify_parse(
        f"${prepared}$", _EXTRACTION, fallback_mode="no_fallback", parsing_timeout=None
    )
    return expressions[0] if expressions else None


def in_radians(latex: str) -> str:
    """Degrees as multiples of pi where a function takes an angle; else their sign is dropped."""
    if "\\circ" not in latex:
        return latex
    if _ANGLE_FUNCTION.search(latex) is None:
        return latex.replace("^\\circ", "")
    return _DEGREES.sub(r"(\\frac{\1\\pi}{180})", latex)


def equal(gold: str, pred: str) -> tuple[bool, str]:
    """Whether two formulas are equal, and how that was found."""
    left, right = (parse(latex) for latex in rename_capitals((gold, pred)))
    if left is None or right is None:
        same = _bare(gold) == _bare(pred)
        side = "gold" if left is None else "prediction"
        return same, "same characters" if same else f"the {side} cannot be read as a formula"
    exact = same_value(left, right)
    if exact is False and (_has_odd_root(left) or _has_odd_root(right)):
        exact = same_value(_with_real_roots(left), _with_real_roots(right))
    if exact is not None:
        return exact, "equal values" if exact else "different values"
    same = bool(math_verify_verify(left, right, timeout_seconds=None))
    return same, "equal by math-verify" if same else "different by math-verify"


def has_names(latex: str) -> bool:
    """True when the formula has variables, or cannot be read."""
    expression = parse(latex)
    return expression is None or bool(getattr(expression, "free_symbols", True))


def proportional(gold: str, pred: str, positive: bool) -> bool:
    """True when one formula is a non-zero (or positive) constant times the other, and not zero."""
    left, right = (parse(latex) for latex in rename_capitals((gold, pred)))
    if left is None or right is None or _names(left) != _names(right):
        return False
    ratios = []
    for point in _points(sorted(_names(left) - {"i"})):
        top, bottom = _value(left, point), _value(right, point)
        if top is None or bottom is None:
            return False
        if abs(top) < CLOSE or abs(bottom) < CLOSE:
            if abs(top) < CLOSE and abs(bottom) < CLOSE:
                continue
            return False
        ratios.append(top / bottom)
    if not ratios or any(abs(ratio - ratios[0]) > CLOSE * abs(ratios[0]) for ratio in ratios):
        return False
    return not positive or bool(sympy.re(ratios[0]) > 0 and abs(sympy.im(ratios[0])) < CLOSE)


def same_value(left: Any, right: Any) -> bool | None:
    """Compare values, at random points where there are variables; None when values cannot tell."""
    if not isinstance(left, sympy.Expr) or not isinstance(right, sympy.Expr):
        return None
    if _opaque(left) or _opaque(right):
        return None
    if not (left.free_symbols or right.free_symbols):
        exact = _rational(left), _rational(right)
        if exact[0] is not None and exact[1] is not None:
            return bool(exact[0] == exact[1])
    tested = 0
    for point in _points(sorted(_names(left) | _names(right) - {"i"})):
        ours, theirs = _value(left, point), _value(right, point)
        if ours is None or theirs is None:
            continue
        scale = max(abs(ours), abs(theirs))
        if abs(ours - theirs) > CLOSE * scale:
            return False
        tested += 1
        if not point:
            break
    return True if tested else None


def _is_odd_root(expression: Any) -> bool:
    power = expression.exp if isinstance(expression, sympy.Pow) else None
    return power is not None and power.is_Rational and power.q > 1 and power.q % 2 == 1


def _has_odd_root(expression: Any) -> bool:
    return any(map(_is_odd_root, sympy.preorder_traversal(expression)))


def _with_real_roots(expression: Any) -> Any:
    r"""`x^{2/3}` and `\sqrt[3]{x^2}` as powers of real roots, as schools define them."""
    return expression.replace(
        _is_odd_root,
        lambda root: sympy.sign(root.base) ** root.exp.p * abs(root.base) ** root.exp,
    )


def _value(expression: Any, point: dict[str, Any]) -> Any:
    """A number with `DIGITS` good digits, or None where the expression has none."""
    values = {symbol: _at(symbol.name, point) for symbol in expression.free_symbols}
    value = sympy.N(expression.subs(values).doit(), DIGITS)
    if value.is_number and value.is_finite and not value.has(sympy.nan, sympy.zoo):
        return value
    return None


def _at(name: str, point: dict[str, Any]) -> Any:
    return sympy.I if name == "i" else point[name]


def _points(names: Sequence[str]) -> list[dict[str, Any]]:
    rng = random.Random("points")
    tries = POINTS if names else 1
    return [
        {name: sympy.Rational(rng.randint(-999, 999), rng.randint(101, 499)) for name in names}
        for _ in range(tries)
    ]


def _rational(expression: Any) -> Any:
    value = expression.doit()
    return value if value.is_Rational else None


def _opaque(expression: Any) -> bool:
    """Functions without a meaning, and names such as x_{n}, are compared by math-verify."""
    return bool(expression.atoms(sympy.core.function.AppliedUndef))


def _names(expression: Any) -> set[str]:
    return {symbol.name for symbol in expression.free_symbols}


def _as_fraction(match: re.Match[str]) -> str:
    whole, part = match[1] or "0", match[2]
    return f"\\frac{{{int(whole + part)}}}{{{10 ** len(part)}}}"


def _as_improper(match: re.Match[str]) -> str:
    whole, top, bottom = map(int, match.groups())
    return f"\\frac{{{whole * bottom + top}}}{{{bottom}}}"


def _capitals(latex: str) -> list[str]:
    plain = re.sub(r"\\[a-zA-Z]+(?: ?\{[A-Z]+\})?", " ", latex)
    return re.findall(r"[A-Z]", plain)


def _rename(latex: str, names: dict[str, str]) -> str:
    def replaced(match: re.Match[str]) -> str:
        name = names.get(match[0])
        return match[0] if name is None else f"\\{name} "

    return re.sub(r"\\[a-zA-Z]+(?: ?\{[A-Z]+\})?|[A-Z]", replaced, latex)


def _bare(latex: str) -> str:
    """Without blanks, but those between digits, and without braces."""
    return re.sub(r"(?<!\d)\s|\s(?!\d)|\\text|[{}]", "", latex)
