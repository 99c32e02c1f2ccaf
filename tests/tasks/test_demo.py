"""The demo's data set can be made again."""

import subprocess
import sys

from tests.fakes.configs import ROOT


def test_the_embedded_questions_are_what_their_script_makes() -> None:
    script = [sys.executable, str(ROOT / "examples/demo_questions.py")]
    made = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    assert made == (ROOT / "components/tasks/data/demo.jsonl").read_text("utf-8")
