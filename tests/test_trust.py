"""docs/trust.md names a test for each of its promises; each of them is there."""

import ast
import re

from tests.fakes.configs import ROOT

TEXT = (ROOT / "docs/trust.md").read_text(encoding="utf-8")


def test_every_promise_names_a_test_that_there_is() -> None:
    lines = [line.split("|") for line in TEXT.splitlines() if line.startswith("| ")]
    promises = [line for line in lines if line[1].strip() != "what"]
    named = [re.findall(r"`(tests/[\w/.]+)::(\w+)`", line[-2]) for line in promises]
    assert len(promises) > 15 and [len(tests) for tests in named].count(0) == 1  # packages
    for path, name in (test for tests in named for test in tests):
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
