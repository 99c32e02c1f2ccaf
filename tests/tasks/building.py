"""Tasks as a run builds them: composed from conf/, then made from their node."""

from pathlib import Path
from typing import Any

from launch.compose import build, to_spec
from tests.composing import ROOT, composed

SHARED = ROOT.parent / "shared" / "data"


def task(*overrides: str, conf: Path = ROOT / "conf", **settings: Any) -> Any:
    """`task("math", "task.answer_cap=9", data={"path": "x.jsonl"})`; settings replace or update whole keys."""
    first, *rest = overrides
    spec = to_spec(composed(f"task={first}", "backend=echo", *rest, conf=conf))
    for key, value in settings.items():
        kept = spec.task[key]
        spec.task[key] = {**kept, **value} if isinstance(kept, dict) else value
    return build("task", spec.task)
