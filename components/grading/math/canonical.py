"""The substring score of published tables: the canonical gold is part of the prediction's."""

import re

_MINUSES = str.maketrans({"\u2013": "-", "\u2014": "-", "\u2212": "-"})
_SIMPLE_FRACTION = re.compile(r"\\frac\{([^{}\\]+)\}\{([^{}\\]+)\}")


def canonical(text: str | None) -> str | None:
    """A lossy form, kept to compare with published numbers.

    `5` is part of `15` in it, and `(1,2)` equals `12`.
    """
    if text is None:
        return None
    form = text.strip().translate(_MINUSES)
    form = form.replace("\\pi", "pi").replace("\u03c0", "pi")
    form = re.sub(r"\\left|\\right|\\,", "", form)
    form = _SIMPLE_FRACTION.sub(r"\1/\2", form)
    form = re.sub(r"[{}\s()\[\],]", "", form)
    form = form.replace("\\boxed", "").replace("$", "").lower().rstrip(".")
    form = re.sub(r"([/+-])\1+", r"\1", form)
    return form.removeprefix("+")


def contains(gold: str | None, pred: str | None) -> bool:
    """True when a non-empty canonical gold is part of the canonical prediction."""
    return bool(gold) and pred is not None and str(gold) in pred
