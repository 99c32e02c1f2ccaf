"""Writes determinants out as formulas, which the algebra system then compares."""

import re
from itertools import permutations

MAX_SIZE = 4  # a determinant of n rows has n! terms
_DETERMINANT = re.compile(
    r"(?:\\det ?\(? ?\\begin ?\{[pb]matrix\}(.*?)\\end ?\{[pb]matrix\} ?\)?"
    r"|\\begin ?\{vmatrix\}(.*?)\\end ?\{vmatrix\})"
)


def expand_determinants(text: str) -> str:
    r"""The text with every `vmatrix`, and every matrix behind `\det`, as the sum of its products.

    What is not square, or has more than `MAX_SIZE` rows, stays as it is.
    """
    if "matrix}" not in text:
        return text
    return _DETERMINANT.sub(lambda match: _expanded(match[1] or match[2]) or match[0], text)


def _expanded(body: str) -> str | None:
    rows = [row.split("&") for row in re.split(r"\\\\", body) if row.strip()]
    size = len(rows)
    if not 1 <= size <= MAX_SIZE or any(len(row) != size for row in rows):
        return None
    if not all(cell.strip() for row in rows for cell in row):
        return None
    terms = []
    for columns in permutations(range(size)):
        product = "\\cdot ".join(
            f"({rows[row][column].strip()})" for row, column in enumerate(columns)
        )
        inversions = sum(columns[i] > columns[j] for j in range(size) for i in range(j))
        terms.append(("-" if inversions % 2 else "+") + product)
    return f"({''.join(terms).removeprefix('+')})"
