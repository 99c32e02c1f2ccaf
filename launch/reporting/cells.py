"""How the numbers of a table are written, in the terminal and in the report: one kind of rounding.

Shares are percentages with one decimal, entropies have three decimals, p-values two digits, other
numbers four. A value that has a standard error stands before it; a share of 0 or 1 stands before
its 95 % interval. Whole numbers stay as they are.
"""

from collections.abc import Mapping
from typing import Any

# Means of 0s and 1s, shown as percentages.
SHARES = (
    *("accuracy", "accuracy_with", "accuracy_without", "share", "change"),
    *("accuracy_recorded", "accuracy_again"),
    *("avg_at_k", "pass_at_k", "maj_at_k"),
    *("improved", "no_answer", "truncated", "tag_violations", "marked", "markers"),
)
PHASE_SHARES = ("think_", "answer_")  # shares of stop reasons, such as think_eos
NATS = (
    *("entropy", "entropy_think", "entropy_answer", "entropy_sd"),
    *("entropy_from", "entropy_to"),  # of a quartile
    *("ent1", "t1", "a1", "ent2", "t2", "a2"),  # of the table by step
)
P_VALUES = ("p", "p_signs", "p_exact")
TENTHS = ("tokens", "tokens_think", "tokens_answer", "tokens_per_second", "seconds")
HEADINGS = {
    **{"side": "report", "change": "change of accuracy"},
    **{"p_signs": "p (sign flips)", "p_exact": "p (McNemar)"},
    **{"right_right": "stayed right", "right_wrong": "right to wrong"},
    **{"wrong_right": "wrong to right", "wrong_wrong": "stayed wrong"},
    **{"avg_at_k": "avg@k", "pass_at_k": "pass@k", "maj_at_k": "maj@k"},
    **{"accuracy_recorded": "accuracy, recorded", "accuracy_again": "accuracy, judged again"},
    **{"right_to_wrong": "right to wrong", "wrong_to_right": "wrong to right"},
    **{"low": "95 % low", "high": "95 % high", "soft": "soft reward"},
}
BESIDE = ("_se", "_low", "_high")  # columns that are shown beside the value that they belong to


def heading(name: str) -> str:
    """A column's name for people, with its unit."""
    unit = " %" if is_share(name) else " (nats)" if name in NATS else ""
    plain = name if name.endswith("_pct") or "." in name else name.replace("_", " ")
    return HEADINGS.get(name, plain) + unit


def is_share(name: str) -> bool:
    """Whether a column is a share in [0, 1], which is shown as a percentage."""
    return name in SHARES or (name.startswith(PHASE_SHARES) and name not in NATS)


def is_beside(name: str, names: Any) -> bool:
    """Whether a column is shown within another one, as its error or interval."""
    return any(name.endswith(end) and name.removesuffix(end) in names for end in BESIDE)


def cell(line: Mapping[str, Any], name: str) -> Any:
    """A value as it is shown: a number with decimals is text, beside its error or interval."""
    value = line[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    error, low, high = (line.get(f"{name}{end}") for end in BESIDE)
    if low is not None and high is not None and value in (0, 1):
        return f"{number(name, value)} [{number(name, low)}, {number(name, high)}]"
    if f"{name}_se" in line:
        around = "" if error is None else f" ± {number(name, error)}"
        return f"{number(name, value)}{around}"
    return value if isinstance(value, int) else number(name, value)


def number(name: str, value: float) -> str:
    """A number of a column in its unit; all of a column have as many decimals, or digits."""
    value = 100 * value if is_share(name) else value
    digits = decimals(name)
    if digits is not None:
        return f"{value:.{digits}f}"
    return str(float(f"{value:.2g}" if name in P_VALUES else f"{value:.4g}"))


def decimals(name: str) -> int | None:
    """How many decimals numbers of a column have; None where it depends on their size."""
    if is_share(name) or name.endswith("_pct") or name in TENTHS:
        return 1
    return 3 if name in NATS else None
