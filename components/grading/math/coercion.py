"""Brings a shape to the kind of the one that it is compared with, where both can mean the same."""

from components.grading.math.brackets import split
from components.grading.math.exact import is_thousands
from components.grading.math.relations import interval
from components.grading.math.shape import read
from components.grading.math.shapes import (
    REALS,
    Atom,
    Group,
    Matrix,
    Quantity,
    Relation,
    Shape,
    Text,
)
from components.grading.math.units import split_letter_unit
from components.grading.math.words import NO_SOLUTION

EMPTY = Group("{", "}", ())
MINUS_INFINITY, INFINITY = REALS.items


def as_quantity(shape: Shape, other: Shape) -> Shape:
    """`36 m^2` is a quantity beside one, and otherwise a formula."""
    if isinstance(shape, Atom) and isinstance(other, Quantity):
        parts = split_letter_unit(shape.latex)
        if parts is not None:
            return Quantity(Atom(parts[0]), parts[1])
    return shape


def as_set(shape: Shape, other: Shape) -> Shape:
    """The interval between two bounds, beside an interval; the empty set for `no solution`.

    Beside anything else it is the shape itself.
    """
    if isinstance(shape, Text) and shape.folded in NO_SOLUTION and other == EMPTY:
        return EMPTY
    if not isinstance(shape, Group) or not isinstance(other, Group) or not other.opening:
        return shape
    rays = [interval(item) for item in shape.items if isinstance(item, Relation)]
    bounds = [ray for ray in rays if ray is not None]
    if shape.opening or len(shape.items) != 2 or len(bounds) != 2:
        return shape
    low, high = bounds if bounds[0].items[1] == INFINITY else bounds[::-1]
    if low.items[1] != INFINITY or high.items[0] != MINUS_INFINITY:
        return shape
    return Group(low.opening, high.closing, (low.items[0], high.items[1]))


def as_list(other: Group, atom: Atom) -> Shape:
    """`100,200` reads as one number, but as two when the other side is a list."""
    if is_thousands(atom.latex) and len(other.items) > 1:
        return Group("", "", tuple(read(part) for part in split(atom.latex, (",",))))
    if len(other.items) == 1 and other.opening in ("", "{"):
        return Group(other.opening, other.closing, (atom,))
    return atom


def as_tuple(matrix: Matrix) -> Shape:
    """A column vector as the tuple of its entries; any other matrix as it is."""
    if all(len(row) == 1 for row in matrix.rows):
        return Group("(", ")", tuple(row[0] for row in matrix.rows))
    return matrix
