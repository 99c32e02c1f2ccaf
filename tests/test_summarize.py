"""`launch/summarize.py` from files to CSV: golden tables, filters, verdicts given again."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launch import api
from launch.config.setup import setup_of
from launch.summarize import main
from tests.analysis.test_summary import ROWS
from tests.fakes.configs import ROOT, composed
from tests.fakes.stored_rows import one, row, write_rows

# tests/analysis/test_summary.py works out every number of this table.
BY_STEP = """\
step,n1S,acc1S_pct,acc1E_pct,ent1,t1,a1,soft1S,soft1E,n2S,acc2S_pct,acc2E_pct,ent2,t2,a2,soft2S,\
soft2E,impS_pct,impE_pct,tag1_pct,tag2_pct
0,5,40.0,66.66666666666667,2.5,2.0,1.0,0.5,0.75,4,75.0,66.66666666666667,0.75,0.7,,0.25,0.5,50.0,\
33.333333333333336,60.0,50.0
50,1,0.0,0.0,,,,,,0,,0.0,,,,,,,0.0,0.0,
"""
BY_EXAMPLE = """\
step,problem,p1_correct,p2_correct,improved
0,A,1,1,0
0,B,0,1,1
0,C,1,0,0
50,A,0,0,0
"""
PROMPTED = [
    row("A", 0, one(True), prompt="v1 what is A?"),
    row("A", 1, one(True), prompt="v2 what is A?"),
    row("B", 0, one(False), prompt="v1 what is B?"),
    row("B", 1, one(False), input="v1 what is B?"),
    row("C", 0, one(True)),
]


def written(tmp_path: Path, rows: list[Any], name: str = "runs/step0/step0000_test.jsonl") -> Path:
    return write_rows(tmp_path / name, rows)


def counted(tmp_path: Path, *line: str) -> dict[str, str]:
    """The first line of the table by step."""
    out = tmp_path / "out.csv"
    assert main([str(tmp_path / "runs"), "--save_csv", str(out), *line]) == 0
    head, first, *_ = out.read_text().splitlines()
    return dict(zip(head.split(","), first.split(","), strict=True))


def test_the_golden_tables_of_a_small_set(tmp_path: Path) -> None:
    written(tmp_path, ROWS)
    steps, examples = tmp_path / "steps.csv", tmp_path / "deep/examples.csv"
    line = [str(tmp_path / "runs"), "--save_csv", str(steps), "--per_example_csv", str(examples)]
    assert main(line) == 0
    assert steps.read_text() == BY_STEP
    assert examples.read_text() == BY_EXAMPLE


def test_every_table_is_printed_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        row(f"p{i}", s, one((i + s) % 2 == 0, i / 5 + s), one(i % 3 == 0, 1.0), model="m")
        for i in range(12)
        for s in range(2)
    ]
    path = written(tmp_path, rows)
    record = {
        "attempts": [
            {"attempt": 1, "status": "killed", "rows": 20, "tokens": 300, "seconds": 10},
            {"attempt": 2, "status": "complete", "rows": 4, "tokens": 60, "seconds": 2},
        ]
    }
    (path.parent / "run.json").write_text(json.dumps(record))
    assert main([str(tmp_path / "runs"), "--csv_dir", str(tmp_path / "csv")]) == 0
    names = {file.stem for file in (tmp_path / "csv").iterdir()}
    tables = {"steps", "passes", "at_k", "flips", "entropy_odds", "entropy_quartiles"}
    assert names == tables | {"shifts", "attempts"}
    attempts = (tmp_path / "csv/attempts.csv").read_text().splitlines()[1]
    assert attempts == "runs,0,2,24,360,12,30.0,0"
    printed = capsys.readouterr().out
    assert "24 rows in 1 files; 0 broken lines" in printed
    assert "McNemar" in printed and "Odds ratio" in printed


@pytest.mark.parametrize(
    ("line", "rows"),
    [
        ([], 5),
        (["--max_prompt_versions", "1"], 3),  # A was asked in two ways, B in one under two keys
        (["--max_prompt_versions", "1", "--prompt_family_regex", r"^v\d "], 5),
        (["--max_prompt_versions", "2", "--filter_scope", "global"], 0),  # three prompts in all
        (["--max_prompt_versions", "3", "--filter_scope", "global"], 5),
        (["--max_prompt_versions", "0", "--prompt_key", "input"], 1),  # falls back: A and B go
        (["--max_prompt_versions", "0", "--prompt_key", "input", "--strict_prompt_key"], 3),
        (["--max_per_group", "1"], 3),
        (["--max_per_group", "1", "--group_key", "pass1.is_correct_pred"], 2),
        (["--max_prompt_versions", "1", "--max_per_group", "1"], 2),
    ],
)
def test_filters_leave_out_rows(tmp_path: Path, line: list[str], rows: int) -> None:
    written(tmp_path, PROMPTED)
    if rows:
        assert counted(tmp_path, *line)["n1S"] == str(rows)
    else:
        assert main([str(tmp_path / "runs"), "--save_csv", str(tmp_path / "o.csv"), *line]) == 0
        assert len((tmp_path / "o.csv").read_text().splitlines()) == 1


def test_copies_hold_the_kept_lines_byte_for_byte(tmp_path: Path) -> None:
    path = written(tmp_path, [*PROMPTED, "{torn"])
    before = path.read_bytes()
    copies = tmp_path / "copies"
    line = ["--max_per_group", "1", "--write_filtered_to", str(copies)]
    assert counted(tmp_path, *line)["n1S"] == "5"  # S0: numbers come from the originals
    kept = before.splitlines(keepends=True)
    assert (copies / "step0/step0000_test.jsonl").read_bytes() == kept[0] + kept[2] + kept[4]
    assert path.read_bytes() == before
    assert counted(tmp_path, *line, "--aggregate_from_filtered")["n1S"] == "3"


def test_rewriting_in_place_keeps_broken_lines_aside(tmp_path: Path) -> None:
    path = written(tmp_path, [PROMPTED[0], "{torn", *PROMPTED[1:]])
    assert counted(tmp_path, "--max_per_group", "1", "--rewrite_filtered")["n1S"] == "3"
    assert [json.loads(line)["problem"] for line in path.open()] == ["A", "B", "C"]
    assert path.with_name(f"{path.name}.broken").read_text() == "{torn\n"


def test_verdicts_by_canonical_forms(tmp_path: Path) -> None:
    def said(canon: str | None, right: bool) -> dict[str, Any]:
        return one(right) | {"pred_answer_canon": canon}

    firsts = [said("15", False), said("5", False), said(None, True), said("7", True)]
    rows = [row(f"p{i}", 0, first, gold_answer_canon="5") for i, first in enumerate(firsts)]
    rows.append(row("q", 0, said("5", True), gold_answer_canon=None))
    written(tmp_path, rows)
    # Recorded: 3 of 5. A missing form leaves the recorded verdict.
    shares = {"none": "60.0", "substring": "80.0", "exact": "60.0"}
    for mode, share in shares.items():
        assert counted(tmp_path, "--recompute_correctness", mode)["acc1S_pct"] == share
    examples = tmp_path / "e.csv"
    line = [str(tmp_path / "runs"), "--recompute_correctness", "exact"]
    assert main([*line, "--per_example_csv", str(examples)]) == 0
    verdicts = [line.split(",")[2] for line in examples.read_text().splitlines()[1:]]
    assert verdicts == ["0", "1", "1", "0", "1"]


def test_what_improved_follows_from_verdicts_by_canonical_forms(tmp_path: Path) -> None:
    def said(canon: str) -> dict[str, Any]:
        return one(True) | {"pred_answer_canon": canon}

    kept = {"improved_over_pass1": False}  # as recorded: both passes were right
    rows = [row("p", 0, said("15"), said("5") | kept, gold_answer_canon="5")]
    written(tmp_path, rows)
    assert counted(tmp_path)["impS_pct"] == "0.0"
    found = counted(tmp_path, "--recompute_correctness", "exact")
    assert (found["impS_pct"], found["impE_pct"]) == ("100.0", "100.0")


def test_recompute_grades_with_the_tasks_grader_and_generates_nothing(tmp_path: Path) -> None:
    def said(answer: str) -> dict[str, Any]:
        output = f"<think>I think</think>\n<answer>{answer}</answer>"
        stopped = {"stop_reason_think": "stop_token", "stop_reason_answer": "stop_token"}
        return {"output": output, "pred_answer": answer, "is_correct_pred": False} | stopped

    rows = [
        row("half?", 0, said("0.5"), said(r"\frac{2}{4}"), gold_answer=r"\frac{1}{2}"),
        row("half?", 1, said("15"), said("1/2"), gold_answer=r"\frac{1}{2}"),
    ]
    written(tmp_path, rows)
    found = counted(tmp_path, "--recompute", "math")
    assert (found["acc1S_pct"], found["acc2S_pct"]) == ("50.0", "100.0")
    assert found["impS_pct"] == "50.0"
    written(tmp_path, [r | {"task": "math"} for r in rows])
    assert counted(tmp_path, "--recompute") == found


def test_recompute_brings_back_what_the_run_itself_said(tmp_path: Path) -> None:
    said: dict[Path, bytes] = {}
    for task in ("crossword", "carpark", "math"):
        line = [f"task={task}", "backend=echo", "cue=reconsider_control", "run.limit=3"]
        outcome = api.run(setup_of(composed(*line, f"run.root={tmp_path / 'runs'}"), line))
        assert outcome.status == 0
        said[outcome.point.rows_path] = outcome.point.rows_path.read_bytes()
    before = counted(tmp_path)
    for path, rows in said.items():
        path.write_bytes(rows.replace(b'"is_correct_pred":false', b'"is_correct_pred":true'))
    assert counted(tmp_path) != before
    assert counted(tmp_path, "--recompute") == before


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (["--k", "3"], "--k must lie between 1 and 2"),
        (["--recompute"], "--recompute TASK"),
        (["--recompute", "nothing"], "nothing"),
        (["--recompute", "math", "--recompute_correctness", "exact"], "not both"),
        (["--aggregate_from_filtered"], "--write_filtered_to"),
        (["--max_prompt_versions", "1", "--prompt_family_regex", "("], "--prompt_family_regex"),
        (["--split", "dev"], "'dev' in their name"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: list[str], sentence: str
) -> None:
    written(tmp_path, [row("p", 0, one(True)), row("p", 1, one(True))])
    assert main([str(tmp_path / "runs"), *line]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and sentence in said


def test_without_the_libraries_for_statistics_their_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, [row("p", 0, one(True))])
    monkeypatch.delitem(sys.modules, "pipeline.analysis.estimates", raising=False)
    monkeypatch.delattr("pipeline.analysis.estimates", raising=False)
    monkeypatch.setitem(sys.modules, "statsmodels", None)
    monkeypatch.setitem(sys.modules, "statsmodels.api", None)
    assert main([str(tmp_path / "runs")]) == 2
    assert "pip install 'rethink-pipeline[stats]'" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(tmp_path / "gone", ignore_errors=True)
    assert main([str(tmp_path / "gone")]) == 2
    assert "gone does not exist" in capsys.readouterr().err


def test_a_file_without_a_row_is_refused_rather_than_summed_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "notes.md"
    path.write_text("# no rows\n")
    assert main([str(path)]) == 2
    said = capsys.readouterr().err
    assert f"no row with a pass in {path} (lines that are no JSON object: 1)" in said


def graded_run(root: Path, *line: str) -> Path:
    """Rows of `task=qa` with the echo backend, as a run leaves them."""
    words = ["task=qa", "backend=echo", "run.limit=4", *line]
    outcome = api.run(setup_of(composed(*words, f"run.root={root}"), words))
    assert outcome.status == 0
    return outcome.point.rows_path


def test_recompute_goes_by_the_runs_own_settings_not_by_the_tasks_defaults(tmp_path: Path) -> None:
    path = graded_run(tmp_path / "runs", "task.grader=exact")
    rows = [json.loads(line) for line in path.open()]
    for one_row in rows:  # an answer that `contains`, the default of conf/task/qa.yaml, accepts
        one_row["pass1"]["output"] = f"It is {one_row['gold_answer']}, I think."
        one_row["pass1"]["segments"] = {"output": [0, len(one_row["pass1"]["output"])]}
        one_row["pass1"]["is_correct_pred"] = False
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    assert counted(tmp_path)["acc1S_pct"] == "0.0"
    assert counted(tmp_path, "--recompute")["acc1S_pct"] == "0.0"
    assert counted(tmp_path, "--recompute", "task.grader=contains")["acc1S_pct"] == "100.0"
    assert counted(tmp_path, "--recompute", "qa")["acc1S_pct"] == "100.0"
    assert counted(tmp_path, "--recompute", "qa", "task.grader=exact")["acc1S_pct"] == "0.0"


def test_runs_may_stand_behind_recompute_and_none_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = graded_run(tmp_path / "runs", "task.grader=exact")
    assert main(["--recompute", str(path.parent)]) == 0
    assert main(["--recompute", "task.grader=contains", str(path.parent)]) == 0
    assert "Verdicts in the rows, and those given again" in capsys.readouterr().out
    for line in ([], ["--recompute"], ["--by", str(path.parent)]):
        assert main(line) == 2
        assert "give run folders or row files" in capsys.readouterr().err


@pytest.mark.parametrize("line", [["--recompute", "math"], ["--recompute_correctness", "exact"]])
def test_recorded_and_new_verdicts_stand_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: list[str]
) -> None:
    def said(answer: str, right: bool) -> dict[str, Any]:
        output = f"<think>I think</think>\n<answer>{answer}</answer>"
        stopped = {"stop_reason_think": "stop_token", "stop_reason_answer": "stop_token"}
        canon = {"pred_answer": answer, "pred_answer_canon": answer, "is_correct_pred": right}
        return {"output": output} | canon | stopped

    gold = {"gold_answer": "5", "gold_answer_canon": "5"}
    rows = [
        row("a", 0, said("5", False), said("5", False), **gold),
        row("b", 0, said("4", True), said("5", False), **gold),
        row("c", 0, said("5", True), said("5", True), **gold),
    ]
    written(tmp_path, rows)
    assert main([str(tmp_path / "runs"), "--csv_dir", str(tmp_path / "csv"), *line]) == 0
    lines = (tmp_path / "csv/verdicts.csv").read_text().splitlines()
    assert lines[0].endswith("rows,accuracy_recorded,accuracy_again,right_to_wrong,wrong_to_right")
    numbers = [line.split(",")[-5:] for line in lines[1:]]
    assert numbers == [["3", "0.6666666666666666", "0.6666666666666666", "1", "1"]] + [
        ["3", "0.3333333333333333", "1.0", "0", "2"]
    ]
    assert "accuracy, recorded %" in capsys.readouterr().out
    # `improved` follows the new verdicts: b alone.
    assert counted(tmp_path, *line)["impS_pct"] == "33.333333333333336"


def test_rows_of_several_graders_are_told_until_one_judges_them_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graders = ["exact", {"name": "contains"}, "exact"]
    rows = [row(f"p{i}", 0, one(True), grader=g) for i, g in enumerate(graders)]
    written(tmp_path, rows)
    assert main([str(tmp_path / "runs")]) == 0
    said = capsys.readouterr().out
    assert "several graders judged the rows of runs, step 0 " in said
    assert "2 by exact" in said and '1 by {"name": "contains"}' in said
    assert main([str(tmp_path / "runs"), "--recompute_correctness", "exact"]) == 0
    assert "WARNING" not in capsys.readouterr().out
    written(tmp_path, rows[::2])
    assert main([str(tmp_path / "runs")]) == 0
    assert "WARNING" not in capsys.readouterr().out


def test_rows_are_grouped_by_a_column_of_the_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        row(f"p{i}", s, one(i % 2 == s % 2), one(True), metadata={"subject": "ab"[i % 2], "n": i})
        for i in range(6)
        for s in range(2)
    ]
    rows += [row("q", 0, one(True), subject="top"), row("r", 0, one(True), metadata=None)]
    written(tmp_path, rows)
    folder = tmp_path / "csv"
    assert main([str(tmp_path / "runs"), "--by", "subject", "--csv_dir", str(folder)]) == 0
    lines = [line.split(",") for line in (folder / "passes.csv").read_text().splitlines()]
    groups = [(line[5], line[6], line[9]) for line in lines[1:]]
    assert lines[0][5:7] == ["subject", "pass"]
    expected = [("a", "pass1", "6"), ("a", "pass2", "6"), ("b", "pass1", "6"), ("b", "pass2", "6")]
    assert groups == [*expected, ("top", "pass1", "1"), ("", "pass1", "1")]
    assert "subject" in (folder / "at_k.csv").read_text().splitlines()[0]
    assert main([str(tmp_path / "runs"), "--by", "colour"]) == 2
    said = capsys.readouterr().err
    assert "by must name a column of the rows, such as gold_answer_canon, n, problem" in said


def many_columns(tmp_path: Path) -> Path:
    rows = [
        row(f"p{i}", s, one((i + s) % 2 == 0, i / 5 + s), one(i % 3 == 0, 1.0), model="m", step=t)
        for i in range(12)
        for s in range(2)
        for t in (0, 50)
    ]
    return written(tmp_path, rows)


def test_tables_fit_a_terminal_of_100_columns_unless_wide(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(many_columns(tmp_path))
    assert main([path]) == 0
    narrow = capsys.readouterr().out
    assert max(map(len, narrow.splitlines())) <= 100
    assert main([path, "--wide"]) == 0
    wide = capsys.readouterr().out
    assert max(map(len, wide.splitlines())) > 100
    assert sorted(set(narrow.split())) == sorted(set(wide.split()))


def test_one_table_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(many_columns(tmp_path)), "--table", "flips"]) == 0
    said = capsys.readouterr().out
    assert "Flips from pass 1" in said and "By step" not in said and "Passes" not in said


def test_a_reader_that_has_read_enough_is_no_error(tmp_path: Path) -> None:
    path = many_columns(tmp_path)
    script = f"{sys.executable} launch/summarize.py {path} | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", script], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
