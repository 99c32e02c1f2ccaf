"""Texts that a spreadsheet would run as formulas."""

import re

STARTS = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")


def like_a_formula(cell: object) -> bool:
    """Whether a spreadsheet would take a text for a formula; a plain number is none."""
    return isinstance(cell, str) and cell.startswith(STARTS) and not _NUMBER.fullmatch(cell)


def escaped(cell: object) -> object:
    """A cell with an apostrophe before what looks like a formula."""
    return f"'{cell}" if like_a_formula(cell) else cell
