"""`launch/export_rows.py`: rows as Parquet, CSV, JSON lines, `datasets`; the S1 schemas."""

import csv
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from datasets import load_from_disk

from launch import api, report, summarize
from launch.config.setup import setup_of
from launch.export_rows import main
from pipeline.analysis.flat import column_kinds, kind_of, merge_kinds
from tests.fakes.configs import composed
from tests.fakes.stored_rows import one, row, write_rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two crosswords x two samples under two cues, with the echo backend."""
    root = tmp_path_factory.mktemp("runs")
    line = ["task=crossword", "backend=echo", "cue=[wait,neutral]", "run.limit=2"]
    line += ["sampling.num_samples=2", "task.system_prompt=Solve it."]
    outcome = api.run(setup_of(composed(*line, f"run.root={root}"), line))
    assert outcome.status == 0
    return outcome.folder


def rows_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in next(folder.glob("step*.jsonl")).open()]


def exported(folder: Path, out: Path, *settings: str) -> None:
    assert main([str(folder), f"out={out}", *settings]) == 0


def test_parquet_holds_every_column_with_its_type(folder: Path, tmp_path: Path) -> None:
    exported(folder, tmp_path / "rows.parquet", "to=parquet")
    frame, rows = pd.read_parquet(tmp_path / "rows.parquet"), rows_in(folder)
    assert frame["pass1.entropy"].tolist() == [r["pass1"]["entropy"] for r in rows]
    assert [list(ids) for ids in frame["pass2b.token_ids"]] == [
        r["pass2b"]["token_ids"] for r in rows
    ]
    assert frame["pass1.is_correct_pred"].dtype == bool
    assert [json.loads(text) for text in frame["pass1.segments"]] == [
        r["pass1"]["segments"] for r in rows
    ]
    assert set(frame) >= {"run", "problem", "temperature", "fingerprint", "pass2.output"}


def test_arrays_can_be_left_out(folder: Path, tmp_path: Path) -> None:
    exported(folder, tmp_path / "rows.parquet", "to=parquet", "arrays=false")
    names = set(pd.read_parquet(tmp_path / "rows.parquet"))
    assert "pass1.reconsider_markers" in names
    assert not names & {"pass1.token_ids", "pass1.entropies", "pass2a.logprobs"}


@pytest.mark.parametrize("to", ["csv", "parquet", "jsonl", "hf"])
def test_half_a_surrogate_pair_is_exported(tmp_path: Path, to: str) -> None:
    half = "half \ud83d, é"
    rows = [row(half, 0, one(True), metadata={"subject": half, "tags": [half]})]
    path = write_rows(tmp_path / "step0.jsonl", [json.dumps(line) for line in rows])
    exported(path, tmp_path / f"out.{to}", f"to={to}")
    whole = "half \ufffd, é"
    if to == "csv":
        assert pd.read_csv(tmp_path / "out.csv")["problem"].tolist() == [whole]
    elif to == "parquet":
        frame = pd.read_parquet(tmp_path / "out.parquet")
        assert frame["problem"].tolist() == [whole] and list(frame["metadata.tags"][0]) == [whole]
    elif to == "hf":
        assert load_from_disk(tmp_path / "out.hf")["problem"][0] == whole
    else:
        assert json.loads((tmp_path / "out.jsonl").read_text())["problem"] == half


def test_csv_reads_back(folder: Path, tmp_path: Path) -> None:
    exported(folder, tmp_path / "rows.csv", "to=csv")
    with (tmp_path / "rows.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    rows = rows_in(folder)
    assert [r["pass1.output"] for r in read] == [r["pass1"]["output"] for r in rows]
    assert json.loads(read[0]["pass1.entropies"]) == rows[0]["pass1"]["entropies"]


def test_a_datasets_folder_loads(folder: Path, tmp_path: Path) -> None:
    exported(folder, tmp_path / "set", "to=hf")
    found, rows = load_from_disk(str(tmp_path / "set")), rows_in(folder)
    assert found["example_id"][:] == [r["example_id"] for r in rows]
    assert found[0]["pass1.entropies"] == rows[0]["pass1"]["entropies"]
    assert main([str(folder), f"out={tmp_path / 'set'}", "to=hf"]) == 2


def test_the_keys_of_the_inferencers_code(folder: Path, tmp_path: Path) -> None:
    exported(folder, tmp_path / "out.jsonl", "to=jsonl", "schema=inferencer", "pass=pass2a")
    made = [json.loads(line) for line in (tmp_path / "out.jsonl").open()]
    assert len(made) == 4
    for line, stored in zip(made, rows_in(folder), strict=True):
        assert line["system_prompt"] == "Solve it."  # of this run, not of conf/task
        assert line["user_prompt"].startswith(f"Clue: {stored['problem']}")
        assert line["assistant_response"] == stored["pass2a"]["output"]
        assert line["ground_truth"] == stored["gold_answer"]
        assert list(line) == ["system_prompt", "user_prompt", "assistant_response", "ground_truth"]


def test_the_keys_of_the_inferencers_documentation(folder: Path, tmp_path: Path) -> None:
    exported(folder, tmp_path / "out.jsonl", "to=jsonl", "schema=inferencer_documented")
    for line, stored in zip((tmp_path / "out.jsonl").open(), rows_in(folder), strict=True):
        made = json.loads(line)
        assert list(made) == ["question", "predicted_answer", "ground_truth", "metadata"]
        assert made["predicted_answer"] == stored["pass1"]["pred_answer"]
        meta = made["metadata"]
        assert meta["model_id"] == stored["model"]
        assert meta["token_count"] == stored["pass1"]["tokens_total"]
        assert meta["inference_time"] == stored["pass1"]["seconds"]
        assert meta["generation_config"]["temperature"] == stored["temperature"]


def test_rows_without_the_pass_are_not_in_it(tmp_path: Path) -> None:
    rows = [row("A", 0, one(True)), row("B", 0, one(True), one(False))]
    path = write_rows(tmp_path / "step0.jsonl", rows)
    settings = ["to=csv", "schema=inferencer_documented", "pass=pass2"]
    exported(path, tmp_path / "out.csv", *settings)
    assert pd.read_csv(tmp_path / "out.csv")["question"].tolist() == ["B"]


def test_columns_of_several_types_become_what_holds_them_all(tmp_path: Path) -> None:
    rows = [
        row("A", 0, one(True, 1), gold_answer="x", grade=1, tags=[], odd=[1, "a"], n=None),
        row("B", 0, one(None, 0.5), gold_answer=["x", "y"], grade=0.5, tags=["t"], odd={"k": 1}),
    ]
    exported(write_rows(tmp_path / "step0.jsonl", rows), tmp_path / "o.parquet")
    frame = pd.read_parquet(tmp_path / "o.parquet")
    assert frame["gold_answer"].tolist() == ['"x"', '["x", "y"]']
    assert frame["grade"].tolist() == [1.0, 0.5]
    assert [list(tags) for tags in frame["tags"]] == [[], ["t"]]
    assert frame["odd"].tolist() == ['[1, "a"]', '{"k": 1}']
    assert frame["pass1.is_correct_pred"].tolist() == [True, None]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2], "int"),
        ([1, 0.5], "float"),
        ([True, 1], "json"),
        (["a", None], "text"),
        ([None], None),
        ([[], [1]], "list int"),
        ([[1], [0.5]], "list float"),
        ([[]], "list"),
        ([[1], "a"], "json"),
        ([[{"a": 1}]], "json"),
    ],
)
def test_kinds(values: list[Any], kind: str | None) -> None:
    assert merge_kinds(map(kind_of, values)) == kind
    assert column_kinds([{"c": value} for value in values])["c"] == (kind or "text")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["to=xml", "out=x"], "to must be one of parquet, csv, jsonl, hf"),
        (["schema=x", "out=x"], "schema must be one of"),
        ([], "out must name"),
        (["schema=inferencer", "pass=pass9", "out=x"], "pass must be one of pass1"),
    ],
)
def test_what_there_is_not_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], settings: list[str], sentence: str
) -> None:
    assert main([str(folder), *settings]) == 2
    assert sentence in capsys.readouterr().err


def test_cells_that_spreadsheets_would_run_are_told_or_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["=HYPERLINK(0)", "+1+1", "@SUM(1)", "-x", "\t=1", "-5", "+0.5", "a=b"]
    rows = [row(text, 0, one(True)) for text in texts]
    path, out = write_rows(tmp_path / "step0.jsonl", rows), tmp_path / "rows.csv"

    def problems(*settings: str) -> list[str]:
        exported(path, out, "to=csv", *settings)
        with out.open(newline="") as file:
            return [line["problem"] for line in csv.DictReader(file)]

    assert problems() == texts
    assert "5 cells of" in capsys.readouterr().out
    assert problems("formulas=escape") == [f"'{text}" for text in texts[:5]] + texts[5:]
    assert "cells of" not in capsys.readouterr().out


def grouped(tmp_path: Path) -> Path:
    rows = [
        row(f"p{i}", s, one(i % 2 == 0 or s == 0), metadata={"subject": "ab"[i % 2], "n": [i]})
        for i in range(4)
        for s in range(2)
    ]
    return write_rows(tmp_path / "step0.jsonl", rows)


def test_means_are_grouped_by_a_column_of_the_data_with_errors(tmp_path: Path) -> None:
    path, out = grouped(tmp_path), tmp_path / "means.csv"
    exported(path, out, "to=csv", "schema=means", "by=subject")
    found = pd.read_csv(out).set_index("subject")
    assert found["accuracy"].to_dict() == {"a": 1.0, "b": 0.5}
    assert found["accuracy_se"].to_dict() == {"a": 0.0, "b": 0.0}  # both examples are alike
    assert found.loc["a", "accuracy_low"] == pytest.approx(2 / (2 + 1.959964**2))
    assert main([str(path), "to=csv", f"out={out}", "by=subject"]) == 2


def test_metadata_are_columns_of_their_own(tmp_path: Path) -> None:
    exported(grouped(tmp_path), tmp_path / "rows.parquet", "to=parquet")
    frame = pd.read_parquet(tmp_path / "rows.parquet")
    assert frame["metadata.subject"].tolist() == list("aabbaabb")
    assert [list(values) for values in frame["metadata.n"]] == [[i // 2] for i in range(8)]


def test_no_door_writes_its_result_over_the_rows_that_it_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_rows(tmp_path / "step0.jsonl", [row("q", 0, one(True))])
    before, name = path.read_bytes(), str(path)
    assert main([name, "to=csv", f"out={name}"]) == 2
    assert report.main([name, "-o", name]) == 2
    assert summarize.main([str(tmp_path), "--save_csv", name]) == 2
    said = capsys.readouterr().err.splitlines()
    keys = ("out", "--output", "--save_csv")
    for line, key in zip(said, keys, strict=True):
        assert line.startswith(f"error: {key} must name another file than the rows that are read")
    assert path.read_bytes() == before
