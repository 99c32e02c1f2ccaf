"""The outer shapes that an answer may have. `shape.py` reads them, `compare.py` compares them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    """Words; `folded` has no case, blanks or punctuation."""

    folded: str


@dataclass(frozen=True, slots=True)
class Atom:
    """A formula for the algebra system."""

    latex: str


@dataclass(frozen=True, slots=True)
class Based:
    """Digits in a stated base."""

    digits: str
    base: int


@dataclass(frozen=True, slots=True)
class Quantity:
    """A value with a unit, or with a percent sign (`unit` is `%`)."""

    value: "Shape"
    unit: str


@dataclass(frozen=True, slots=True)
class Group:
    """Items in delimiters: a tuple or an interval; `{` a set; no delimiter a bare list."""

    opening: str
    closing: str
    items: tuple["Shape", ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """The letter of a choice and the answer behind it, as in `(B) 12`."""

    letter: str
    answer: "Shape"


@dataclass(frozen=True, slots=True)
class Union:
    """A union of intervals or sets."""

    parts: tuple["Shape", ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of entries."""

    rows: tuple[tuple["Shape", ...], ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """A chain such as `a < b <= c`: `sides` are one more than `signs` (`= < > <= >= !=`)."""

    sides: tuple[str, ...]
    signs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Compound:
    """One quantity in several units of a kind, as in `6 hours and 30 minutes`: values by unit."""

    parts: tuple[tuple[str, "Shape"], ...]


@dataclass(frozen=True, slots=True)
class Ratio:
    """Terms in LaTeX, as in `2:3`; also a time of day such as `10:25`."""

    terms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ruled:
    """A set given by a rule: what its elements look like, and the condition on them."""

    element: "Shape"
    condition: "Shape"


Shape = (
    Text
    | Atom
    | Based
    | Quantity
    | Group
    | Union
    | Matrix
    | Relation
    | Choice
    | Compound
    | Ratio
    | Ruled
)
ORDER = {"<", ">", "<=", ">="}
REALS = Group("(", ")", (Atom("-\\infty"), Atom("\\infty")))


def kind_of(shape: Shape) -> str:
    """The kind of a shape in words, for reasons."""
    if isinstance(shape, Group):
        return {"": "a list", "{": "a set"}.get(shape.opening, "a tuple or interval")
    return f"a {type(shape).__name__.lower()}"
