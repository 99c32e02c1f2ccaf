"""The door that lists the tasks."""

import subprocess
import sys

from launch.tasks import listed
from tests.fakes.configs import ROOT


def test_every_task_is_listed_with_size_judge_source_and_a_sentence() -> None:
    rows = {row[0]: row[1:] for row in listed()}
    assert set(rows) == {path.stem for path in (ROOT / "conf" / "task").glob("*.yaml")}
    assert rows["math"][:3] == ("24", "equality of values", "embedded")
    assert rows["gsm8k"][:3] == ("-", "equality of values", "openai/gsm8k [test]")
    assert rows["qa"][1] == "contains" and rows["prompts"][1] == "none"
    assert all(sentence.endswith((".", "`.")) for *_, sentence in rows.values())


def test_the_door_prints_the_presets_of_earlier_projects_when_asked() -> None:
    command = [sys.executable, "launch/tasks.py", "legacy"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "legacy/math-azure" in done.stdout, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 100 and "[test]" in done.stdout
