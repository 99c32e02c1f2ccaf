"""docs/fields.md has every column of rows and exports, and no other."""

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from launch import api
from launch.config.setup import setup_of
from launch.export_rows import main as export
from pipeline.protocols import STRATEGIES
from tests.fakes.configs import ROOT, composed

TEXT = (ROOT / "docs/fields.md").read_text(encoding="utf-8")
# Columns that only some data sets, services or runs have.
NOT_FROM_ECHO = {
    "messages",
    "system_prompt",
    "choices",
    "metadata",
    "grader",
    "backfilled",
    "error",
}
NOT_FROM_ECHO |= {"grading", "scored", "entropy_by", *STRATEGIES}  # strategies: where they are on


def told(section: str) -> dict[str, str]:
    """The columns of a section's table, and the last cell of each line: the source."""
    (text,) = re.findall(rf"## {section}\n(.*?)(?=\n## |\Z)", TEXT, re.DOTALL)
    lines = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    return {name: cells[-2].strip() for cells in lines for name in re.findall(r"`(\w+)`", cells[1])}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of every task of its own kind, under two cues, with the echo backend."""
    root = tmp_path_factory.mktemp("runs")
    for task in ("crossword", "carpark", "math", "qa", "prompts", "judge/answer_accuracy"):
        line = [f"task={task}", "backend=echo", "cue=[wait,neutral]", "run.limit=2"]
        outcome = api.run(setup_of(composed(*line, f"run.root={root}"), line))
        assert outcome.status == 0
    return root


@pytest.fixture(scope="module")
def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(run.rglob("step*.jsonl")) for line in path.open()]


def passes_of(row: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {n: f for n, f in row.items() if n.startswith("pass") and isinstance(f, dict)}


def test_every_column_of_a_row_is_told_and_no_other(rows: list[dict[str, Any]]) -> None:
    there = {name for row in rows for name in row if not re.fullmatch("pass2[b-z]", name)}
    page = told("A row")
    assert there - set(page) == set()
    missing = {name for name, source in page.items() if source != "gateway"} - NOT_FROM_ECHO - there
    assert missing == set()


def test_every_column_of_a_pass_is_told_and_no_other(rows: list[dict[str, Any]]) -> None:
    there = {name for row in rows for fields in passes_of(row).values() for name in fields}
    page = told("A pass")
    assert there - set(page) - {"enumeration"} == set()
    missing = {name for name, source in page.items() if source != "gateway"} - NOT_FROM_ECHO - there
    assert missing == set()


def test_columns_of_gateways_are_names_in_their_code() -> None:
    folder = ROOT / "components/backends/openai_api"
    code = "".join(path.read_text() for path in sorted(folder.rglob("*.py")))
    code += (ROOT / "pipeline/run/backend_columns.py").read_text()
    for section in ("A row", "A pass"):
        names = {name for name, source in told(section).items() if source == "gateway"}
        assert {name for name in names if f'"{name}"' not in code} == set()


def test_units_and_definitions_hold_for_rows(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        for name, fields in passes_of(row).items():
            if name == "pass2":  # repeats another without its arrays
                continue
            count = fields["tokens_total"]
            phases = fields["segments"]
            assert count == sum(fields[f"tokens_{phase}"] for phase in phases)
            for series in ("token_ids", "entropies", "logprobs", "token_ends"):
                assert len(fields[series]) == count
            assert fields["entropy"] == pytest.approx(sum(fields["entropies"]) / count)
            assert fields["token_ends"][-1] <= len(fields["output"])
            at = 0
            for phase, (begin, end) in phases.items():
                assert 0 <= begin <= end <= len(fields["output"])
                part = fields["entropies"][at : at + fields[f"tokens_{phase}"]]
                at += len(part)
                assert fields[f"entropy_{phase}"] == pytest.approx(sum(part) / len(part))
            shown = fields["prev_output"]
            assert shown is None if name == "pass1" else shown == row["pass1"]["output"]


def test_exports_have_the_columns_that_the_page_tells(run: Path, tmp_path: Path) -> None:
    assert export([str(run), "to=parquet", f"out={tmp_path / 'rows.parquet'}"]) == 0
    names = set(pd.read_parquet(tmp_path / "rows.parquet"))
    parts: dict[bool, set[str]] = defaultdict(set)
    for name in sorted(name for name in names if not name.startswith("metadata.")):
        parts["." in name].add(name.rpartition(".")[2])
    assert parts[False] - set(told("A row")) == {"run"}
    assert parts[True] - set(told("A pass")) - {"enumeration"} == set()
    assert export([str(run), "to=csv", f"out={tmp_path / 'm.csv'}", "schema=means"]) == 0
    assert set(pd.read_csv(tmp_path / "m.csv")) == set(told("Exports"))
