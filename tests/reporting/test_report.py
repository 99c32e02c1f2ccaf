"""What the report's file holds; how it looks and acts is tested in tests/browser."""

import base64
import configparser
import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from launch import report, summarize
from launch.reporting import html_file
from launch.reporting.compare import NAMES
from launch.reporting.rows import pack
from launch.reporting.runs import difference, dotted_keys
from pipeline.protocols import Cue, Example
from pipeline.run.pass_fields import SeriesPolicy, build_pass
from pipeline.store.files import encode
from pipeline.store.pass_names import distinct_passes
from tests.browser.runs import CUES, HOSTILE, PHASES, generation, write_run
from tests.fakes.configs import ROOT
from tests.fakes.stored_rows import write_rows

PIECE = re.compile(r'<script type="text/plain" id="piece-([\w-]+)">([A-Za-z0-9+/=]*)</script>')


def unpacked(page: Path) -> dict[str, Any]:
    """The data pieces of a report, as the page unpacks them."""
    texts = {
        name: gzip.decompress(base64.b64decode(data))
        for name, data in PIECE.findall(page.read_text())
    }
    libraries = ("plotly", "katex", "katex-style")
    return {n: t.decode() if n in libraries else json.loads(t) for n, t in texts.items()}


def a_pass(words: str, cue: Cue | None) -> dict[str, Any]:
    draw = random.Random(1)
    parts = [generation(draw, words.split(), 1.0), generation(draw, ["7"], 1.0)]
    return build_pass(Example("e", "q"), PHASES, parts, cue, SeriesPolicy())


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    write_run(root / "ours", 20, 2, seed=1)
    write_run(root / "theirs", 20, 2, seed=2)
    return root


def test_the_file_is_self_contained_and_hostile_text_cannot_end_its_scripts(written: Path) -> None:
    page = written / "report.html"
    title = "<b>mine</b> & </title><script>"
    assert report.main([str(written / "ours"), "-o", str(page), "--title", title]) == 0
    text = page.read_text()
    assert HOSTILE not in text and "<b>mine" not in text
    outside = PIECE.sub("", text)
    assert outside.count("<script") == outside.count("</script") == 1
    assert not re.search(r"""(?:src|href)=["'](?!#)|@import|url\((?!data:)""", outside)
    pieces = unpacked(page)
    assert "url(fonts" not in pieces["katex-style"] and "Plotly" in pieces["plotly"]
    outputs = [p["output"] for row in pieces["texts-0"] for p in row["passes"]]
    assert any(HOSTILE in output for output in outputs)
    assert {notice["name"] for notice in pieces["index"]["licences"]} == {"plotly.js", "KaTeX"}
    assert all("Permission is hereby granted" in n["text"] for n in pieces["index"]["licences"])


def test_every_row_and_its_prompt_is_in_the_pieces(written: Path) -> None:
    page = written / "report.html"
    assert report.main([str(written / "ours"), "-o", str(page)]) == 0
    pieces = unpacked(page)
    rows, chunk = pieces["index"]["rows"], pieces["index"]["chunk"]
    assert len(rows) == 160 and "texts-2" in pieces and "texts-3" not in pieces
    for number, row in enumerate(rows):
        texts = pieces[f"texts-{number // chunk}"][number % chunk]
        tokens = pieces[f"tokens-{number // chunk}"][number % chunk]
        assert len(row["passes"]) == len(texts["passes"]) == len(tokens) == 3
        messages = pieces["prompts"]["prompts"][row["prompt"]]
        said = [
            (role, "".join(pieces["prompts"]["texts"][t] for t in ts)) for role, *ts in messages
        ]
        assert said == [("system", "You are careful."), ("user", f"Problem: {texts['problem']}")]


def test_fewer_rows_keep_the_same_examples_of_both_runs(written: Path) -> None:
    page = written / "report.html"
    runs = [str(written / "ours"), "--compare", str(written / "theirs")]
    assert report.main([*runs, "-o", str(page), "--rows", "40"]) == 0
    index = unpacked(page)["index"]
    shown = [
        {
            tuple(r[name] for name in ("example", "sample", "step", "temperature"))
            for r in index["rows"]
            if r["run"] == n
        }
        for n in (0, 1)
    ]
    assert shown[0] == shown[1] and len(shown[0]) == 40
    assert [run["rows"] for run in index["runs"]] == [160, 160]
    assert (
        sum(p["rows"] for p in index["charts"]["points"] if p["place"] == [] and p["run"] == 1)
        == 480
    )


def test_tokens_cue_and_markers_lie_where_the_page_looks_for_them() -> None:
    cue = CUES[0]
    fields = a_pass("wait, let me reconsider 🙂 this", cue)
    packed = pack({"problem": "q", "pass1": a_pass("one two", None), "pass2": fields})
    texts, series = packed.texts["passes"][1], packed.tokens[1]
    output = texts["output"]
    assert output[slice(*texts["cue"])] == "Wait, let me reconsider. "
    names = {name: output[begin:end] for name, begin, end in texts["marks"]}
    assert names["reconsider_exact"] == "wait, let me reconsider"
    assert [output[slice(*tag[:2])] for tag in texts["tags"]] == [
        "<think>",
        "</think>",
        "<answer>",
        "</answer>",
    ]
    assert output[texts["answer_at"] :] == "<answer>7</answer>"
    assert series is not None
    ends = [sum(series["ends"][: i + 1]) for i in range(len(series["ends"]))]
    (count, begin), (_, answer) = series["phases"]
    starts = [begin, *ends[: count - 1], answer]
    tokens = [output[a:b] for a, b in zip(starts, ends, strict=True)]
    assert tokens == ["wait,", " let", " me", " reconsider", " 🙂", " this", "7"]
    assert series["entropy"] == [round(1000 * e) for e in fields["entropies"]]


def test_a_row_of_the_original_keeps_what_it_has() -> None:
    first = {
        "output": "<think>a</think><answer>4</answer>",
        "is_correct_pred": True,
        "entropy": 0.5,
    }
    again = first | {"output": "<think>b</think><answer>5</answer>", "unknown_v1": True}
    row = {"problem": "2+2", "pass1": first, "pass2a": first, "pass2": again, "pass2c": again}
    assert list(distinct_passes(row)) == ["pass1", "pass2a", "pass2c"]
    packed = pack(row)
    assert packed.line["example"] == "2+2" and packed.tokens == [None, None, None]
    assert packed.texts["passes"][2]["fields"]["unknown_v1"] is True
    assert packed.texts["passes"][0]["cue"] is None
    oldest = pack({"problem": "2+2", "output": "4", "entropy": 0.5})
    assert [(p["cue"], p["entropy"]) for p in oldest.line["passes"]] == [(None, 0.5)]


def test_numbers_are_over_all_rows_and_those_worked_out_by_hand(tmp_path: Path) -> None:
    verdicts = [(True, True), (True, False), (False, True), (False, True), (False, None)]
    file = tmp_path / "step0000_test.jsonl"
    with file.open("wb") as out:
        for i, (before, after) in enumerate(verdicts):
            passes = {"pass1": {"is_correct_pred": before, "entropy": 0.25}}
            passes["pass2"] = {"is_correct_pred": after, "entropy": 0.55, "cue": "wait"}
            row = {"example_id": str(i // 2), "sample_idx": i % 2, "step": 0, "temperature": 0.3}
            out.write(encode(row | {"task": "t"} | passes))
    assert report.main([str(file), "-o", str(tmp_path / "r.html"), "--rows", "0"]) == 0
    index = unpacked(tmp_path / "r.html")["index"]
    assert index["rows"] == [] and index["passes"] == ["pass 1", "wait"]
    (flip,) = index["charts"]["flips"]
    counts = [flip[name] for name in ("right_right", "right_wrong", "wrong_right", "wrong_wrong")]
    assert counts == [1, 1, 2, 0] and flip["p_exact"] == 1.0 and flip["p"] == "1.0"
    first, second = (p for p in index["charts"]["points"] if p["place"] == [])
    assert (first["label"], first["accuracy"], second["accuracy"]) == ("pass 1", 0.4, 0.75)
    bins = [h for h in index["charts"]["histograms"] if h["label"] == "pass 1"]
    assert {(h["right"], h["counts"].index(max(h["counts"])), sum(h["counts"])) for h in bins} == {
        (True, 2, 2),
        (False, 2, 3),
    }
    flips = next(table for table in index["tables"] if table["title"] == "Flips")
    assert dict(zip(flips["columns"], flips["rows"][0], strict=True))["wrong to right"] == 2


def test_numbers_are_the_same_texts_on_the_page_and_in_the_terminal(
    written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = str(written / "ours")
    assert summarize.main([ours, "--wide"]) == 0
    said = capsys.readouterr().out
    assert report.main([ours, "-o", str(tmp_path / "r.html")]) == 0
    tables = unpacked(tmp_path / "r.html")["index"]["tables"]
    shown = {cell for table in tables for row in table["rows"] for cell in row}
    steps = next(table for table in tables if table["title"] == "By step")  # by run as well
    assert not [cell for cell in shown if isinstance(cell, float)]
    numbers = {cell for cell in shown if isinstance(cell, str) and cell[:1].isdigit()}
    numbers -= {cell for row in steps["rows"] for cell in row}
    assert len(numbers) > 20 and {cell for cell in numbers if cell not in said} == set()


def test_two_runs_are_paired_sample_by_sample_even_at_different_steps(tmp_path: Path) -> None:
    sides = ([True, True, False, True], [True, False, True, None])
    for name, step, verdicts in zip(("a", "b"), (0, 50), sides, strict=True):
        with (tmp_path / f"{name}-step{step}.jsonl").open("wb") as out:
            for i, right in enumerate(verdicts):
                row = {"example_id": str(i), "sample_idx": 0, "step": step, "task": "t"}
                out.write(encode(row | {"pass1": {"is_correct_pred": right}}))
    files = [str(tmp_path / name) for name in ("a-step0.jsonl", "b-step50.jsonl")]
    assert report.main([files[0], "--compare", files[1], "-o", str(tmp_path / "r.html")]) == 0
    table = unpacked(tmp_path / "r.html")["index"]["tables"][0]
    line = dict(zip(table["columns"], table["rows"][0], strict=True))
    assert [line[name] for name in ("rows", *NAMES.values())] == [3, 1, 1, 1, 0]
    assert line["p (McNemar)"] == line["p (sign flips)"] == "1.0"


def test_an_original_board_and_the_shown_pass_1_are_found() -> None:
    first = {"output": "<think>own</think>", "is_valid_pred": True}
    row = {"problem": "Example oAABCooBCoooDDoo. Solve ooBAABCoCoooDDoo now.", "pass1": first}
    packed = pack(row | {"pass2": {"output": "again", "prev_output": "another's"}})
    assert packed.texts["board"] == "ooBAABCoCoooDDoo"
    assert [p["shown"] for p in packed.texts["passes"]] == [None, "another's"]
    assert pack({"problem": row["problem"], "pass1": {"output": "x"}}).texts["board"] is None


def test_configs_are_compared_key_by_key() -> None:
    ours = {
        key: [value]
        for key, value in dotted_keys({"run": {"seed": 1, "cue": {}}, "a": [1]}).items()
    }
    theirs = {
        key: [value]
        for key, value in dotted_keys({"run": {"seed": 2, "cue": {}}, "b": None}).items()
    }
    differs = [item["key"] for item in difference(ours, theirs) if not item["same"]]
    assert differs == ["run.seed", "a", "b"]


def test_what_cannot_be_read_ends_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report.main([str(tmp_path / "nothing"), "-o", str(tmp_path / "r.html")]) == 2
    assert "does not exist" in capsys.readouterr().err
    (tmp_path / "step0000_test.jsonl").touch()
    assert report.main([str(tmp_path), "-o", str(tmp_path / "r.html")]) == 2
    assert "no row with a pass" in capsys.readouterr().err
    assert not (tmp_path / "r.html").exists()


def test_a_task_outside_this_repository_is_not_loaded(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 2, 1)
    for path in (tmp_path / "run").rglob("run.json"):
        path.write_text(
            path.read_text().replace("components.tasks.mathematics.Mathematics", "os.system")
        )
    assert report.main([str(tmp_path / "run"), "-o", str(tmp_path / "r.html")]) == 0
    index = unpacked(tmp_path / "r.html")["index"]
    assert all(row["prompt"] is None for row in index["rows"])
    assert any("which no file of conf/task names" in note for note in index["notes"])


def test_every_script_and_style_of_the_page_is_in_the_file() -> None:
    files = {path.name for path in html_file.PAGE.iterdir() if path.suffix in (".js", ".css")}
    assert files == {*html_file.SCRIPTS, *html_file.STYLES}


def test_an_installation_carries_every_file_of_the_page() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    patterns = setup["options.package_data"]["launch.reporting"].split()
    folder = html_file.PAGE.parent
    carried = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    assert carried == {path for path in html_file.PAGE.rglob("*") if path.is_file()}
    assert len(carried) > 40


def test_tables_and_rows_are_grouped_by_a_column_of_the_data(tmp_path: Path) -> None:
    fields = {"pass1": {"is_correct_pred": True, "entropy": 0.5}, "task": "t", "sample_idx": 0}
    rows = [{"example_id": str(i), "metadata": {"subject": "ab"[i % 2]}} | fields for i in range(6)]
    path = write_rows(tmp_path / "step0.jsonl", rows)
    assert report.main([str(path), "-o", str(tmp_path / "r.html"), "--by", "subject"]) == 0
    index = unpacked(tmp_path / "r.html")["index"]
    assert index["by"] == ["subject"]
    assert [r["groups"]["subject"] for r in index["rows"]] == list("ababab")
    passes = next(table for table in index["tables"] if table["title"].startswith("Passes"))
    lines = [dict(zip(passes["columns"], line, strict=True)) for line in passes["rows"]]
    assert [(line["subject"], line["rows"]) for line in lines] == [("a", 3), ("b", 3)]
    assert all(line["accuracy %"] == "100.0 [43.9, 100.0]" for line in lines)


def test_the_first_screen_says_where_rows_come_from(tmp_path: Path) -> None:
    for seed in (1, 2):
        folder = tmp_path / f"seed{seed}"
        row = {"example_id": "e", "sample_idx": 0, "step": 0, "task": "t", "seed": seed}
        write_rows(folder / "step0000_test.jsonl", [row | {"pass1": {"is_correct_pred": True}}])
        attempt = {"attempt": 1, "status": "complete", "start": "2026-01-02", "end": "2026-01-03"}
        attempt |= {"python": "3.11", "versions": {"torch": "2"}, "git": "abc" * 10}
        attempt["backend"] = {"device": "cpu", "dtype": "float32", "decoder": "slots"}
        spec = {"model": {"path": "org/<b>m", "revision": "r1"}, "run": {"seed": seed}}
        overrides = ["task=t", f"run.seed={seed}", f"sampling.top_p=0.{seed}", f"run.name={seed}"]
        stored = {"fingerprint": "f" * 64, "step": 0, "rows_wanted": 4, "spec": spec}
        stored |= {"overrides": overrides, "attempts": [attempt]}
        (folder / "run.json").write_text(json.dumps(stored))
    page = tmp_path / "r.html"
    assert report.main([str(tmp_path), "-o", str(page)]) == 0
    index = unpacked(page)["index"]
    found = index["runs"][0]["provenance"]
    shared = dict(found["shared"])
    assert (shared["model"], shared["revision"], shared["dtype"]) == ("org/<b>m", "r1", "float32")
    assert (shared["device"], shared["decoder"], shared["rows"]) == ("cpu", "slots", "1 of 4")
    assert shared["versions"] == "python 3.11, torch 2" and shared["fingerprint"] == "f" * 12
    assert (shared["begun"], shared["ended"], shared["commit"]) == (
        "2026-01-02",
        "2026-01-03",
        "abc" * 4,
    )
    seeds = found["columns"].index("seed")
    assert [line[seeds] for line in found["rows"]] == ["1", "2"]
    assert index["by"] == ["run.seed", "sampling.top_p"]
    groups = [{"run.seed": str(s), "sampling.top_p": f"0.{s}"} for s in (1, 2)]
    assert [row["groups"] for row in index["rows"]] == groups
    bars = {p["group"] for p in index["charts"]["points"]}
    assert "t · run.seed=1 · sampling.top_p=0.1" in bars and "t" in bars
    passes = next(t for t in index["tables"] if t["title"].startswith("Passes"))
    assert {"run.seed", "sampling.top_p"} <= set(passes["columns"])


def test_tags_that_the_pipeline_wrote_are_told_from_the_models_own() -> None:
    texts = pack({"problem": "q", "pass1": a_pass("one two <answer>", None)}).texts["passes"][0]
    written = [(texts["output"][begin:end], forced) for begin, end, forced in texts["tags"]]
    assert ("<think>", True) in written and ("</answer>", True) in written
    assert ("<answer>", False) in written
    assert texts["has_think"]
