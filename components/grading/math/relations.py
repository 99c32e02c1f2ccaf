"""What equations and inequalities say: names, intervals, and sides brought together."""

from components.grading.math.brackets import split
from components.grading.math.exact import number
from components.grading.math.names import is_name, is_variable
from components.grading.math.shape import read
from components.grading.math.shapes import Group, Relation, Union


def all_but(relation: Relation) -> Relation | Union:
    """The real line without some numbers, as a union of open intervals."""
    points = split(relation.sides[1], (",", ";"))
    known = [(value, point) for point in points if (value := number(point)) is not None]
    if len(known) != len(points):
        return relation
    ends = ["-\\infty", *(point for _, point in sorted(known)), "\\infty"]
    pairs = zip(ends, ends[1:], strict=False)
    return Union(tuple(Group("(", ")", (read(low), read(high))) for low, high in pairs))


def interval(relation: Relation) -> Group | None:
    """The interval that an inequality in one variable describes; None for any other relation."""
    sides, signs = list(relation.sides), list(relation.signs)
    if all(sign in (">", ">=") for sign in signs):
        sides.reverse()
        signs = [sign.replace(">", "<") for sign in reversed(signs)]
    if not all(sign in ("<", "<=") for sign in signs) or len(signs) > 2:
        return None
    if len(signs) == 2:
        low, middle, high = sides
        ends = ("(" if signs[0] == "<" else "["), (")" if signs[1] == "<" else "]")
    elif is_variable(sides[0]):
        (middle, high), low = sides, "-\\infty"
        ends = "(", ")" if signs[0] == "<" else "]"
    else:
        (low, middle), high = sides, "\\infty"
        ends = ("(" if signs[0] == "<" else "["), ")"
    if not is_variable(middle):
        return None
    return Group(ends[0], ends[1], (read(low), read(high)))


def variables(relation: Relation) -> set[str]:
    """The sides that are one variable."""
    return {side for side in relation.sides if is_variable(side)}


def same_function(left: str, right: str) -> bool:
    """`f(x)` and `y` name the same value; two variables, or two functions, do not."""
    calls = [
        is_name(name) and name.rstrip().endswith(")") and "(" in name[1:] for name in (left, right)
    ]
    return any(calls) and "y" in (left.strip(), right.strip())


def ascending(relation: Relation) -> Relation:
    """The relation written with `<` and `<=` where it has `>` and `>=`."""
    if all(sign in (">", ">=") for sign in relation.signs):
        signs = tuple(sign.replace(">", "<") for sign in reversed(relation.signs))
        return Relation(relation.sides[::-1], signs)
    return relation


def difference(relation: Relation) -> str:
    """The first side minus the second, in LaTeX."""
    return f"{relation.sides[0]}-({relation.sides[1]})"
