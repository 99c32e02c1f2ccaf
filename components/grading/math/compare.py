"""Whether a prediction equals the gold answer. The task's docstring states what counts as equal."""

from collections.abc import Sequence

from components.grading.math import algebra
from components.grading.math.clean import balanced, clean
from components.grading.math.coercion import as_list, as_quantity, as_set, as_tuple
from components.grading.math.exact import number
from components.grading.math.names import is_name, is_variable
from components.grading.math.ratios import as_fraction, same_ratio
from components.grading.math.relations import (
    all_but,
    ascending,
    difference,
    interval,
    same_function,
    variables,
)
from components.grading.math.shape import read, written
from components.grading.math.shapes import (
    Atom,
    Based,
    Choice,
    Compound,
    Group,
    Matrix,
    Quantity,
    Ratio,
    Relation,
    Ruled,
    Shape,
    Text,
    Union,
    kind_of,
)
from components.grading.math.units import same_unit
from components.grading.math.words import same_words, words_of

MAX_LENGTH = 2000
DOTS = Atom("\\cdots")  # a list that goes on has an order

Outcome = tuple[bool, str]


def compare(gold: str, pred: str) -> Outcome:
    """Equal or not, and why. Texts are answers, with or without dollar signs or a box."""
    if not pred.strip():
        return False, "no answer"
    if gold.strip() == pred.strip():
        return True, "same text"
    if len(pred) > MAX_LENGTH:
        return False, f"longer than {MAX_LENGTH} characters"
    ours, theirs = clean(gold), clean(pred)
    if ours == theirs and ours:
        return True, "same after cleaning"
    if not balanced(theirs):
        return False, "the prediction's braces do not pair up"
    return same(read(ours), read(theirs))


def same(gold: Shape, pred: Shape) -> Outcome:
    """Compare two shapes."""
    if isinstance(gold, Choice) or isinstance(pred, Choice):
        return _choices(gold, pred)
    gold, pred = _meet(gold, pred)
    if isinstance(gold, Compound) or isinstance(pred, Compound):
        return _compounds(gold, pred)
    if isinstance(gold, Text) or isinstance(pred, Text):
        return _texts(gold, pred)
    if isinstance(gold, Quantity) or isinstance(pred, Quantity):
        return _quantities(gold, pred)
    if isinstance(gold, Based) or isinstance(pred, Based):
        return _bases(gold, pred)
    if isinstance(gold, Relation) and isinstance(pred, Relation):
        return _relations(gold, pred)
    if isinstance(gold, Matrix) and isinstance(pred, Matrix):
        return _matrices(gold, pred)
    if isinstance(gold, Ratio) and isinstance(pred, Ratio):
        return same_ratio(gold, pred)
    if isinstance(gold, Ruled) and isinstance(pred, Ruled):
        return _ordered((gold.element, gold.condition), (pred.element, pred.condition))
    if isinstance(gold, Union) and isinstance(pred, Union):
        return _unordered(gold.parts, pred.parts)
    if isinstance(gold, Group) and isinstance(pred, Group):
        return _groups(gold, pred)
    if isinstance(gold, Atom) and isinstance(pred, Atom):
        return _atoms(gold.latex, pred.latex)
    return False, f"{kind_of(gold)} against {kind_of(pred)}"


def _meet(gold: Shape, pred: Shape) -> tuple[Shape, Shape]:
    """Bring `x = 5` and `5`, `x > 3` and an interval, or a column and a tuple to one shape."""
    if isinstance(gold, Relation) and not isinstance(pred, Relation):
        gold = _as_other(gold)
    if isinstance(pred, Relation) and not isinstance(gold, Relation):
        pred = _as_other(pred)
    gold, pred = as_fraction(gold, pred), as_fraction(pred, gold)
    gold, pred = as_quantity(gold, pred), as_quantity(pred, gold)
    gold, pred = as_set(gold, pred), as_set(pred, gold)
    if isinstance(gold, Group) and isinstance(pred, Atom):
        pred = as_list(gold, pred)
    elif isinstance(pred, Group) and isinstance(gold, Atom):
        gold = as_list(pred, gold)
    if isinstance(gold, Matrix) and isinstance(pred, Group):
        gold = as_tuple(gold)
    elif isinstance(pred, Matrix) and isinstance(gold, Group):
        pred = as_tuple(pred)
    return gold, pred


def _as_other(relation: Relation) -> Shape:
    """What a relation says of a single value, else the relation itself.

    The value of `name = value`, of `value = name` and of a true sum such as `2 + 4 = 6`; the
    interval of an inequality in one variable, or the union that `x != 3` leaves.
    """
    if set(relation.signs) == {"="}:
        return _value(relation)
    if relation.signs == ("!=",) and is_variable(relation.sides[0]):
        return all_but(relation)
    described = interval(relation)
    return relation if described is None else described


def _value(relation: Relation) -> Shape:
    first, last = relation.sides[0], relation.sides[-1]
    values = relation.sides
    if is_name(first) and is_name(last) and last.endswith(")") and not last.startswith("("):
        return relation  # P(A) = P(B) says the value of neither
    if is_name(first):
        values = values[1:]
    elif is_name(last):
        values = values[:-1]
    elif any(map(algebra.has_names, values)):
        return relation
    result = read(values[-1])
    chain = all(same(read(side), result)[0] for side in values[:-1])
    return result if chain else relation


def _choices(gold: Shape, pred: Shape) -> Outcome:
    """A letter with its text against both, against the letter alone, or against the text alone."""
    if isinstance(gold, Choice) and isinstance(pred, Choice):
        if gold.letter != pred.letter:
            return False, f"choice {gold.letter} against {pred.letter}"
        return same(gold.answer, pred.answer)
    choice, other = (gold, pred) if isinstance(gold, Choice) else (pred, gold)
    assert isinstance(choice, Choice)
    if words_of(other) == choice.letter.casefold():
        return True, "the same choice"
    return same(choice.answer, other)


def _texts(gold: Shape, pred: Shape) -> Outcome:
    equal = same_words(gold, pred)
    return equal, "same words" if equal else "different words"


def _quantities(gold: Shape, pred: Shape) -> Outcome:
    ours = gold.unit if isinstance(gold, Quantity) else None
    theirs = pred.unit if isinstance(pred, Quantity) else None
    if ours is not None and theirs is not None and not same_unit(ours, theirs):
        return False, f"unit {ours} against {theirs}"
    value = gold.value if isinstance(gold, Quantity) else gold
    other = pred.value if isinstance(pred, Quantity) else pred
    if "%" in (ours, theirs) and ours != theirs:
        return _percent(value, other) if ours == "%" else _percent(other, value)
    equal, reason = same(value, other)
    if equal and ours != theirs:
        return True, f"{reason}; the unit is left out"
    return equal, reason


def _compounds(gold: Shape, pred: Shape) -> Outcome:
    """Quantities in several units: the same units, which may not be left out, and values."""
    if not isinstance(gold, Compound) or not isinstance(pred, Compound):
        return False, f"{kind_of(gold)} against {kind_of(pred)}"
    if [unit for unit, _ in gold.parts] != [unit for unit, _ in pred.parts]:
        return False, "different units"
    return _ordered([value for _, value in gold.parts], [value for _, value in pred.parts])


def _percent(percent: Shape, bare: Shape) -> Outcome:
    """A percentage with its sign against a bare value: the same number, or its hundredth."""
    equal, _ = same(percent, bare)
    small = isinstance(bare, Atom) and (value := number(bare.latex)) is not None and abs(value) < 1
    if equal and not small:
        return True, "equal; the percent sign is left out"
    if isinstance(percent, Atom) and isinstance(bare, Atom):
        equal, _ = same(Atom(f"\\frac{{{percent.latex}}}{{100}}"), bare)
        if equal:
            return True, "equal; the percentage is written as a number"
    return False, "different percentages"


def _bases(gold: Shape, pred: Shape) -> Outcome:
    if isinstance(gold, Based) and isinstance(pred, Based):
        if gold.base != pred.base:
            return False, f"base {gold.base} against {pred.base}"
        return gold.digits == pred.digits, "digits in the same base"
    based, other = (gold, pred) if isinstance(gold, Based) else (pred, gold)
    if isinstance(based, Based) and based.base == 10:
        return same(Atom(based.digits), other)
    return False, "a base is given on one side only"


def _relations(gold: Relation, pred: Relation) -> Outcome:
    if set(gold.signs) == set(pred.signs) == {"="}:
        return _equations(gold, pred)
    ours, theirs = interval(gold), interval(pred)
    if ours is not None and theirs is not None:
        if variables(gold) == variables(pred):
            return _groups(ours, theirs)
        if len(variables(gold)) == len(variables(pred)) == 1:
            return False, "inequalities in different variables"
    left, right = _as_other(gold), _as_other(pred)
    if isinstance(left, Union) and isinstance(right, Union) and variables(gold) == variables(pred):
        return _unordered(left.parts, right.parts)
    ours_up, theirs_up = ascending(gold), ascending(pred)
    if ours_up.signs != theirs_up.signs or len(ours_up.sides) != 2:
        return False, "different relations"
    positive = ours_up.signs[0] != "!="
    equal = algebra.proportional(difference(ours_up), difference(theirs_up), positive)
    return equal, "the same inequality" if equal else "different inequalities"


def _equations(gold: Relation, pred: Relation) -> Outcome:
    names = gold.sides[0], pred.sides[0]
    if names[0].replace(" ", "") == names[1].replace(" ", "") or same_function(*names):
        equal, reason = same(read(gold.sides[-1]), read(pred.sides[-1]))
        if equal:
            return True, reason
    if len(gold.sides) != 2 or len(pred.sides) != 2:
        return False, "different equations"
    equal = algebra.proportional(difference(gold), difference(pred), positive=False)
    return equal, "the same equation" if equal else "different equations"


def _matrices(gold: Matrix, pred: Matrix) -> Outcome:
    if [len(row) for row in gold.rows] != [len(row) for row in pred.rows]:
        return False, "matrices of different shape"
    for ours, theirs in zip(gold.rows, pred.rows, strict=True):
        equal, reason = _ordered(ours, theirs)
        if not equal:
            return False, reason
    return True, "equal entries"


def _groups(gold: Group, pred: Group) -> Outcome:
    ours, theirs = gold.opening, pred.opening
    if {ours, theirs} <= {"", "{"}:
        if DOTS in (*gold.items, *pred.items):
            return _ordered(gold.items, pred.items)
        return _unordered(gold.items, pred.items)
    if "{" in (ours, theirs):
        return False, "a set against ordered values"
    bare = "" in (ours, theirs)
    brackets = (gold.opening, gold.closing) != (pred.opening, pred.closing)
    if bare:
        delimiters = {gold.opening, gold.closing, pred.opening, pred.closing} - {""}
        if delimiters != {"(", ")"}:
            return False, "an interval against a list"
    elif brackets and len(gold.items) == 2:
        return False, "brackets differ"
    equal, reason = _ordered(_values(gold), _values(pred))
    return equal, reason


def _values(group: Group) -> Sequence[Shape]:
    """The items; assignments to names give their values in the order of the names."""
    relations = [item for item in group.items if isinstance(item, Relation)]
    if group.opening or len(relations) != len(group.items):
        return group.items
    return [_as_other(item) for item in sorted(relations, key=lambda item: item.sides[0])]


def _ordered(gold: Sequence[Shape], pred: Sequence[Shape]) -> Outcome:
    if len(gold) != len(pred):
        return False, f"{len(gold)} values against {len(pred)}"
    for place, (ours, theirs) in enumerate(zip(gold, pred, strict=True), start=1):
        equal, reason = same(ours, theirs)
        if not equal:
            return False, f"value {place}: {reason}"
    return True, "equal values in order"


def _unordered(gold: Sequence[Shape], pred: Sequence[Shape]) -> Outcome:
    if len(gold) != len(pred):
        return False, f"{len(gold)} values against {len(pred)}"
    left = list(pred)
    for ours in gold:
        match = next((theirs for theirs in left if same(ours, theirs)[0]), None)
        if match is None:
            return False, "a value is missing"
        left.remove(match)
    return True, "equal values in any order"


def _atoms(gold: str, pred: str) -> Outcome:
    if gold == pred:
        return True, "same formula"
    ours, theirs = number(gold), number(pred)
    if ours is not None and theirs is not None:
        return ours == theirs, "equal numbers" if ours == theirs else "different numbers"
    return algebra.equal(
        gold if ours is None else written(ours), pred if theirs is None else written(theirs)
    )
