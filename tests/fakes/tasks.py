"""Tasks as a run builds them: composed from conf/, then made from their node."""

from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from launch.config.compose import build, to_spec
from tests.fakes.configs import ROOT, composed

SHARED = ROOT.parent / "shared" / "data"


def task(*overrides: str, conf: Path = ROOT / "conf", **settings: Any) -> Any:
    """`task("math", "task.answer_cap=9", data={"path": "x.jsonl"})`.

    Settings replace or update whole keys.
    """
    node = deepcopy(_node(overrides, conf))
    for key, value in settings.items():
        node[key] = {**node[key], **value} if isinstance(node[key], dict) else value
    return build("task", node)


@cache
def _node(overrides: tuple[str, ...], conf: Path) -> dict[str, Any]:
    first, *rest = overrides
    return to_spec(composed(f"task={first}", "backend=echo", *rest, conf=conf)).task
