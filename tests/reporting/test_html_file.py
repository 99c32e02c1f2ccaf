"""The report's one file: what fills its places, and formulas that would crash a browser."""

import html
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from launch import report
from launch.reporting.html_file import PAGE
from tests.fakes.stored_rows import one, row, write_rows


@pytest.mark.parametrize("title", ["{{pieces}}", "{{script}}", "{{title}} {{style}}", r"\1 \g<0>"])
def test_a_title_that_looks_like_a_place_of_the_page_is_a_title(tmp_path: Path, title: str) -> None:
    path, page = write_rows(tmp_path / "step0.jsonl", [row("A", 0, one(True))]), tmp_path / "r.html"
    assert report.main([str(path), "-o", str(page), "--title", title]) == 0
    text = re.sub(r'<script type="text/plain".*?</script>\n', "", page.read_text())
    written = html.escape(title)
    assert f"<title>{written}</title>" in text and f"<h1>{written}</h1>" in text
    assert text.count("<script") == 1


FORMULAS = {
    r"\frac{1}{2}": True,
    r"\sqrt{" * 50 + "x" + "}" * 50: True,
    r"x^{2} + " * 300 + "1": True,
    r"\alpha\beta\gamma\delta " * 10: True,
    r"\frac{" * 200 + "1" + "}{2}" * 200: False,
    r"\frac" * 200 + "1" * 201: False,
    r"\left(" * 200 + "x" + r"\right)" * 200: False,
    r"\sqrt " * 200 + "x": False,
    r"\displaystyle x " * 200: False,
    r"\color{red} x " * 200: False,
    r"\begin{matrix}" * 100 + r"\end{matrix}" * 100: False,
    "x^{" * 3000 + "}" * 3000: False,
}


@pytest.mark.skipif(shutil.which("node") is None, reason="node runs the page's script")
@pytest.mark.parametrize(("text", "rendered"), FORMULAS.items(), ids=range(len(FORMULAS)))
def test_a_formula_nested_too_deep_for_a_browser_stays_text(text: str, rendered: bool) -> None:
    script = (
        PAGE / "latex.js"
    ).read_text() + "\nconst given = require('fs').readFileSync(0, 'utf8');"
    script += "\nconsole.log(levels(given) <= MOST_LEVELS);"
    done = subprocess.run(["node", "-e", script], input=text, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == (str(rendered).lower(), "")
