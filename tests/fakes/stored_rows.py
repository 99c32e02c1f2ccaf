"""Row files written by hand, for tests that read them."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def write_rows(path: Path, rows: Iterable[dict[str, Any] | str]) -> Path:
    """One line per row; a string is written as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def one(right: bool | None, entropy: float | None = None, **more: Any) -> dict[str, Any]:
    """A pass object with the fields that a test cares for."""
    answer = {True: "yes", False: "no", None: ""}[right]
    return {
        "output": f"<think>x</think><answer>{answer}</answer>",
        "pred_answer": answer,
        "pred_answer_canon": answer,
        "is_correct_pred": right,
        "entropy": entropy,
        **more,
    }


def row(problem: str, sample: int, pass1: Any, pass2: Any = None, **more: Any) -> dict[str, Any]:
    """A row of the original's shape."""
    return {
        "problem": problem,
        "sample_idx": sample,
        "gold_answer_canon": "yes",
        "split": "test",
        "pass1": pass1,
        "pass2": pass2,
        **more,
    }
