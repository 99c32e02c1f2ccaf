"""From the demo's run, cut short, to a report with one command, opened in Chromium."""

import subprocess
import sys
from pathlib import Path

from tests.browser.driving import every, one, open_page, open_sample, opened, screenshot
from tests.fakes.configs import ROOT

# What `make demo` runs, on one problem and with low caps.
DEMO = ("task=math", "cue=reconsider", "backend=hf", "run.limit=1")
SHORT = ("sampling.think_cap=24", "sampling.answer_cap=12")


def command(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, timeout=240)


def test_the_demo_becomes_a_report_with_one_command(tmp_path: Path) -> None:
    command("launch/run.py", *DEMO, *SHORT, f"run.root={tmp_path}", "run.name=demo")
    page = tmp_path / "report.html"
    command("launch/report.py", str(tmp_path / "demo"), "-o", str(page))
    with opened(tmp_path / "profile") as browser:
        open_page(browser, page, "summary")
        headings = [h.text for h in every(browser, "#panel-summary h2")]
        at_k = "avg@k, pass@k, maj@k: means over examples"
        assert {"Passes: means over samples", "Flips", at_k, "By step"} <= set(headings)
        facts = {f.text: f for f in every(browser, ".provenance dt")}
        named = {"model", "dtype", "device", "decoder", "rows", "fingerprint", "versions", "begun"}
        assert named <= set(facts)
        sample = open_sample(browser, page, 0)
        passes = every(sample, ".pass")
        assert len(passes) == 4
        for shown in passes:
            assert len(every(shown, ".token")) > 5
        one(passes[1], "summary").click()
        said = [message.text for message in every(passes[1], ".said")]
        assert len(said) == 4 and said[1].startswith("Problem: ")
        assert said[2].startswith("<think>") and said[3].startswith("Hold on")
        screenshot(browser, "demo")
