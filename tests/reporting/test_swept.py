"""Points of a sweep are told apart by what the sweep varied, wherever their rows stand together."""

import json
from pathlib import Path
from typing import Any

import pytest

from launch import report
from launch.reporting.swept import swept_columns
from launch.summarize import main
from tests.fakes.stored_rows import write_rows
from tests.reporting.test_report import unpacked


def run_folder(folder: Path, overrides: list[str], swept: Any, right: bool = True) -> Path:
    rows = [
        {"example_id": f"e{i}", "sample_idx": 0, "step": 0, "task": "t", "model": "m"}
        | {"temperature": 0.7, "pass1": {"is_correct_pred": right}}
        for i in range(2)
    ]
    write_rows(folder / "step0000_test.jsonl", rows)
    stored = {"step": 0, "spec": {"sampling": {"top_p": 0.9}, "run": {"seed": 0}}, "attempts": []}
    stored |= {"overrides": overrides, "swept": swept}
    (folder / "run.json").write_text(json.dumps(stored))
    return folder


def test_the_keys_of_a_sweep_are_those_of_its_records(tmp_path: Path) -> None:
    folders = [
        run_folder(
            tmp_path / name,
            [f"sampling.top_p={top_p}", f"run.limit={limit}"],
            {"sampling.top_p": top_p},
        )
        for name, top_p, limit in (("a", "0.8", 20), ("b", "0.95", 40))
    ]
    assert swept_columns(folders) == {"sampling.top_p": ["0.8", "0.95"]}


def test_folders_that_no_sweep_tells_apart_are_told_by_their_lines(tmp_path: Path) -> None:
    swept = run_folder(tmp_path / "a", ["sampling.top_p=0.8"], {"sampling.top_p": "0.8"})
    alone = run_folder(tmp_path / "b", [], {})
    other = run_folder(tmp_path / "c", ["run.seed=3", "run.name=x"], {})
    assert swept_columns([swept, alone]) == {"sampling.top_p": ["0.8", "0.9"]}
    assert swept_columns([alone, other]) == {"run.seed": ["0", "3"]}
    everything = {"sampling.top_p": ["0.8", "0.9", "0.9"], "run.seed": ["0", "0", "3"]}
    assert swept_columns([swept, alone, other]) == everything


@pytest.mark.parametrize("swept", [None, ["sampling.top_p"], "sampling.top_p", {"a": [1]}])
def test_a_record_that_says_anything_else_is_data(tmp_path: Path, swept: Any) -> None:
    folders = [run_folder(tmp_path / n, [f"run.seed={n}"], swept) for n in "12"]
    assert swept_columns(folders) == {"run.seed": ["1", "2"]}


def test_pages_say_which_folder_holds_which_values(tmp_path: Path) -> None:
    for name, top_p in (("x-b45f50", "0.95"), ("x-914f10", "0.8")):
        run_folder(tmp_path / name, [f"sampling.top_p={top_p}"], {"sampling.top_p": top_p})
    assert report.main([str(tmp_path), "-o", str(tmp_path / "r.html")]) == 0
    index = unpacked(tmp_path / "r.html")["index"]
    found = index["runs"][0]["provenance"]
    assert found["columns"] == ["folder", "sampling.top_p"]
    assert [values[1] for values in found["rows"]] == ["0.8", "0.95"]
    passes = next(table for table in index["tables"] if table["title"].startswith("Passes"))
    assert passes["columns"][:2] == ["task", "sampling.top_p"]
    assert [row[1] for row in passes["rows"]] == ["0.8", "0.95"]


def test_tables_name_swept_keys_in_their_order_and_no_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, top_p in (("x-b45f50", "0.8"), ("x-914f10", "0.95"), ("x-5ec6c2", "0.1")):
        folder = tmp_path / name / "step-0"
        run_folder(folder, [f"sampling.top_p={top_p}"], {"sampling.top_p": top_p}, top_p == "0.8")
    assert main([str(tmp_path), "--table", "passes"]) == 0
    said = capsys.readouterr().out
    lines = [line.split() for line in said.splitlines() if "pass1" in line]
    assert [(line[1], line[5]) for line in lines] == [
        ("0.1", "0.0"),
        ("0.8", "100.0"),
        ("0.95", "0.0"),
    ]
    assert "sampling.top_p" in said and "x-" not in said
