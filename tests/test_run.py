"""The real command line, end to end, with the echo backend."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.configs import ROOT
from tests.run.test_executor import stable

GOLDEN = ROOT / "tests/golden"
LINE = ("task=crossword", "backend=echo", "cue=reconsider")


def command(*overrides: str) -> list[str]:
    return [sys.executable, str(ROOT / "launch/run.py"), *overrides]


def run(*overrides: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command(*overrides), cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


def rows_in(folder: Path) -> list[dict[str, Any]]:
    (path,) = folder.rglob("step*.jsonl")
    return [stable(json.loads(line)) for line in path.open(encoding="utf-8")]


def test_one_command_leaves_a_whole_run_folder(tmp_path: Path) -> None:
    done = run(*LINE, f"run.root={tmp_path}", "run.limit=3", "sampling.num_samples=2")
    (folder,) = tmp_path.glob("default/crossword-echo-T0.7-*/step-0")
    names = {f.name for f in folder.iterdir() if not f.name.startswith(".")}
    assert names == {
        "config.yaml",
        "overrides.yaml",
        "run.json",
        "log.txt",
        "step0000_test.jsonl",
    }
    assert len(rows_in(tmp_path)) == 6
    assert "complete: 6 of 6 rows" in done.stdout
    record = json.loads((folder / "run.json").read_text())
    assert record["sampling"]["num_samples"] == {"value": 2, "from": "command line"}
    assert record["sampling"]["top_p"]["from"] == "sampling=default"


@pytest.mark.parametrize("chosen", ["name", "dir"])
def test_a_folder_of_another_row_version_is_refused_with_a_sentence(
    tmp_path: Path, chosen: str
) -> None:
    shutil.copytree(GOLDEN / "runs", tmp_path, dirs_exist_ok=True)
    (folder,) = tmp_path.glob("row_version_0/*/step-0")
    where = ("run.name=row_version_0",) if chosen == "name" else (f"run.dir={folder}",)
    line = ("task=crossword", "backend=echo", "cue=wait", "run.limit=2", f"run.root={tmp_path}")
    done = run(*line, *where, status=2)
    assert f"{folder} was made by another version of Rethink" in done.stderr
    assert "row_version 0 there, 1 here" in done.stderr
    assert [f.name for f in (tmp_path / "row_version_0").iterdir()] == [folder.parent.name]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_rows_after_kill_9_and_resume_equal_an_undisturbed_run(tmp_path: Path, seed: int) -> None:
    line = [*LINE, "run.limit=8", "sampling.num_samples=2", "backend.capacity=4"]
    run(*line, f"run.root={tmp_path / 'whole'}")
    slow = [*line, f"run.root={tmp_path / 'cut'}", "backend.seconds_per_token=0.001"]
    draw = random.Random(seed)
    with subprocess.Popen(command(*slow), cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        wait_for_rows(tmp_path / "cut", draw.randint(1, 8))
        time.sleep(draw.random() / 5)
        process.kill()
    cut = len(rows_in(tmp_path / "cut"))
    assert 0 < cut <= 16
    run(*line, f"run.root={tmp_path / 'cut'}")
    assert rows_in(tmp_path / "cut") == rows_in(tmp_path / "whole")


def wait_for_rows(folder: Path, count: int) -> None:
    for _ in range(600):
        files = list(folder.rglob("step*.jsonl"))
        if files and files[0].read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.05)
    raise AssertionError(f"no {count} rows in {folder} after 30 s")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_with_a_status_of_its_own_and_keeps_rows(
    tmp_path: Path, number: int
) -> None:
    slow = [*LINE, f"run.root={tmp_path}", "backend.capacity=2", "backend.seconds_per_token=0.002"]
    with subprocess.Popen(command(*slow), cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        wait_for_rows(tmp_path, 2)
        process.send_signal(number)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted" in out
    (record,) = tmp_path.rglob("run.json")
    assert json.loads(record.read_text())["attempts"][0]["status"] == "interrupted"


def test_two_starts_at_once_do_not_write_one_file(tmp_path: Path) -> None:
    slow = [*LINE, f"run.root={tmp_path}", "backend.seconds_per_token=0.005"]
    with subprocess.Popen(command(*slow), cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        wait_for_rows(tmp_path, 1)
        done = run(*slow, status=2)
        process.kill()
    assert "is being written by process" in done.stderr


def test_a_sweep_makes_one_folder_per_point_and_its_rerun_asks_nothing(tmp_path: Path) -> None:
    line = ["-m", *LINE, "sampling.temperature=0,0.3", "run.limit=2", f"run.root={tmp_path}"]
    run(*line)
    folders = sorted(p.parent.name for p in tmp_path.glob("default/*/step-0"))
    assert [name.rsplit("-", 2)[1] for name in folders] == ["T0", "T0.3"]
    before = {p: p.read_bytes() for p in tmp_path.rglob("step*.jsonl")}
    run(*line)
    assert {p: p.read_bytes() for p in tmp_path.rglob("step*.jsonl")} == before


def test_a_dry_run_prints_a_prompt_of_every_pass_and_writes_nothing(tmp_path: Path) -> None:
    done = run(*LINE, f"run.root={tmp_path}/new", "run.dry=true")
    assert "Clue: " in done.stdout and "<think>" in done.stdout
    assert "pass 2c, cue wait" in done.stdout
    assert "[think: up to 750 tokens by the model]" in done.stdout
    assert done.stdout.count("Wait, let me reconsider") == 2  # the user's turn, and the reasoning
    assert "24 rows x 4 passes x 2 phases = 192 requests" in done.stdout
    assert not list(tmp_path.iterdir())


SWEPT = ["-m", *LINE[:2], "cue=wait", "run.limit=2", "sampling.temperature=0,0.3"]
DRY_SWEEPS = [
    [*SWEPT, "run.dry=true"],
    ["experiment=temperatures", "task=crossword", "backend=echo", "run.limit=2", "run.dry=true"],
    ["cluster=debug", *SWEPT, "run.dry=true"],
]


@pytest.mark.parametrize("line", DRY_SWEEPS)
def test_a_dry_sweep_lists_its_points_and_generates_nothing(
    tmp_path: Path, line: list[str]
) -> None:
    done = run(*line, f"run.root={tmp_path}/new")
    assert "points, " in done.stdout and "nothing is generated" in done.stdout
    assert done.stdout.count(", pass 1\n") == 1 and "by the model]" in done.stdout
    assert not list(tmp_path.iterdir())


def test_a_dry_run_of_a_gateway_says_what_it_costs_at_most(tmp_path: Path) -> None:
    line = ("task=crossword", "backend=openai", "backend.deployment=gpt-4o-mini", "cue=wait")
    price = "+backend.prices.gpt-4o-mini={input: 1.0, output: 2.0}"
    done = run(*line, price, f"run.root={tmp_path}", "run.limit=1", "run.dry=true")
    assert float(re.search(r"cost: ([\d.]+) USD at most", done.stdout)[1]) > 0  # type: ignore[index]


def test_a_dry_run_says_what_the_same_line_would_be_refused_for(tmp_path: Path) -> None:
    where = [f"run.dir={tmp_path}/point", f"run.root={tmp_path}", "run.limit=1"]
    run(*LINE, *where)
    done = run(*LINE, *where, "run.seed=7", "run.dry=true", status=2)
    assert "without run.dry this line is refused" in done.stderr
    assert "run.seed (42 there, 7 now)" in done.stderr
    assert "0 rows to do, of 1 x 4" in run(*LINE, *where, "run.dry=true").stdout


def test_cfg_job_shows_the_run_and_help_the_groups() -> None:
    assert "temperature: 0.7" in run(*LINE, "--cfg", "job").stdout
    assert "crossword" in run("--help").stdout


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return f"task.data.path={path}"


GOOD = json.dumps({"problem": "1+1?", "answer": "2"})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, ["nowhere.jsonl"]),
        ("", ["bad.jsonl"]),
        (f"{GOOD}\n{{broken\n", ["bad.jsonl:2"]),
        (f'{GOOD}\n{{"problem": null, "answer": "2"}}\n', ["bad.jsonl:2", "problem"]),
        ('{"wrong": 1}\n', ["bad.jsonl", "problem"]),
    ],
)
def test_bad_data_ends_in_one_sentence(tmp_path: Path, text: str | None, says: list[str]) -> None:
    missing = f"task.data.path={tmp_path}/nowhere.jsonl"
    data = missing if text is None else write(tmp_path / "bad.jsonl", text)
    done = run("task=math", "backend=echo", data, f"run.root={tmp_path}", status=2)
    assert done.stderr.startswith("error: ") and len(done.stderr.strip().splitlines()) == 1
    assert all(part in done.stderr for part in says), done.stderr


def test_an_output_folder_that_cannot_be_written_ends_in_one_sentence(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    done = run(*LINE, f"run.dir={blocked}/run", f"run.root={tmp_path}", status=2)
    assert done.stderr.startswith("error: ") and "cannot be written" in done.stderr
    if os.geteuid() != 0:  # root writes anywhere
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o555)
        assert "cannot be written" in run(*LINE, f"run.dir={closed}/run", status=2).stderr


def test_changed_spec_in_the_same_folder_is_refused_with_its_keys(tmp_path: Path) -> None:
    where = [f"run.dir={tmp_path}/point", f"run.root={tmp_path}", "run.limit=1"]
    run(*LINE, *where)
    done = run(*LINE, *where, "run.seed=7", "sampling.top_k=5", status=2)
    assert "run.seed (42 there, 7 now)" in done.stderr and "sampling.top_k" in done.stderr


def test_ctrl_c_while_libraries_load_leaves_no_traceback(tmp_path: Path) -> None:
    line = command(*LINE, f"run.root={tmp_path}")
    with subprocess.Popen(line, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        time.sleep(0.4)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130 and "Traceback" not in errors
