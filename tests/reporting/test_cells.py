"""Numbers are rounded in one way, whichever table they stand in."""

from typing import Any

import pytest

from launch.reporting.cells import cell, heading


@pytest.mark.parametrize(
    ("line", "name", "shown"),
    [
        ({"accuracy": 0.5, "accuracy_se": 0.01234}, "accuracy", "50.0 ± 1.2"),
        ({"accuracy": 0.5, "accuracy_se": None}, "accuracy", "50.0"),
        (
            {"accuracy": 0.0, "accuracy_se": 0.0, "accuracy_low": 0.0, "accuracy_high": 0.3244},
            "accuracy",
            "0.0 [0.0, 32.4]",
        ),
        ({"entropy": 0.25, "entropy_se": 0.1}, "entropy", "0.250 ± 0.100"),
        ({"truncated": 0.125}, "truncated", "12.5"),
        ({"p_signs": 0.0123456}, "p_signs", "0.012"),
        ({"acc1S_pct": 66.6666}, "acc1S_pct", "66.7"),
        ({"odds_ratio": 1.234567}, "odds_ratio", "1.235"),
        ({"tokens": 1234.56}, "tokens", "1234.6"),
        ({"rows": 12}, "rows", 12),
        ({"note": None}, "note", None),
        ({"truncated": 1.0}, "truncated", "100.0"),
        ({"p_exact": 1.0}, "p_exact", "1.0"),
        ({"think_eos": 0.25}, "think_eos", "25.0"),
    ],
)
def test_cells(line: dict[str, Any], name: str, shown: Any) -> None:
    assert cell(line, name) == shown


def test_headings_name_their_unit() -> None:
    names = ("accuracy", "entropy_think", "p_signs", "acc1S_pct", "tokens_per_second")
    expected = ["accuracy %", "entropy think (nats)", "p (sign flips)", "acc1S_pct"]
    assert [heading(name) for name in names] == [*expected, "tokens per second"]
