"""Sweeps on the real Slurm: arrays, packs, shards, failures that are seen, refusals, plans."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.store.stored_record import attempts_of
from tests.fakes.configs import ROOT
from tests.slurm.sweeps import ECHO, SLOW, Sweep, ask, lines_in, tasks_of, until, wait_for_rows

GRID = ("sampling.temperature=0,0.05,0.3,0.7", "model.step=0,50,100", "run.limit=4")


@pytest.fixture
def alone(undisturbed: Callable[[str], dict[str, list[str]]]) -> dict[str, list[str]]:
    """The rows of ECHO, by one process without a cluster."""
    return undisturbed("echo")


def test_a_grid_runs_as_one_array_each_point_in_its_folder_with_one_table(tmp_path: Path) -> None:
    text = Sweep("grid", tmp_path, *ECHO, *GRID, "run.name=grid").end()
    arrays = re.findall(r"submitted 12 jobs as (\d+)", text)
    assert len(arrays) == 1 and text.count("12 points") == 1
    rows = lines_in(tmp_path)
    assert len(rows) == 12 and all(len(lines) == 8 for lines in rows.values())
    for temperature in ("0", "0.05", "0.3", "0.7"):
        steps = [n for n in rows if re.search(rf"-T{re.escape(temperature)}-\w+/step-", n)]
        assert sorted(name.rpartition("step-")[2] for name in steps) == ["0", "100", "50"]
    states = ask("sacct", "-X", "-n", "-P", "-j", arrays[0], "-o", "State").splitlines()
    assert states == ["COMPLETED"] * 12
    assert (tmp_path / f".sweeps/grid/.submitit/{arrays[0]}_11").is_dir()
    again = Sweep("grid", tmp_path, *ECHO, *GRID, "run.name=grid").end()
    assert "submitted" not in again and again.count("done") == 12


def test_packed_points_share_a_job_and_have_the_rows_they_have_apart(tmp_path: Path) -> None:
    line = (*ECHO, "sampling.temperature=0,0.3,0.7", "model.step=0,50", "run.limit=4")
    text = Sweep("packed", tmp_path / "packed", *line, "run.pack=[temperature]").end()
    assert "submitted 2 jobs" in text
    Sweep("apart", tmp_path / "apart", *line, "cluster=local", "-m").end()
    assert lines_in(tmp_path / "packed") == lines_in(tmp_path / "apart")


def test_a_job_that_raises_is_failed_with_its_traceback_in_its_log_and_in_the_table(
    tmp_path: Path,
) -> None:
    line = ("task=crossword", "backend=echo", "run.limit=2", "cluster=slurm")
    broken = "backend._target_=tests.slurm.failing.FailsInRank"
    text = Sweep("raises", tmp_path, *line, broken, "sampling.temperature=0,0.3").end(status=1)
    assert text.count("failed: crossword-") == 2 and "rank 0 is broken on purpose" in text
    for log in re.findall(r"log: (\S+)\)", text):
        said = Path(log).read_text()
        assert "Traceback" in said and "failing.py" in said and "broken on purpose" in said
    array = re.search(r"submitted 2 jobs as (\d+)", text)
    assert array
    states = ask("sacct", "-X", "-n", "-P", "-j", array[1], "-o", "State").splitlines()
    assert states == ["FAILED", "FAILED"]


def test_one_failing_rank_fails_the_job_and_is_named(tmp_path: Path) -> None:
    line = [*ECHO, "backend._target_=tests.slurm.failing.FailsInRank", "+backend.rank=1"]
    line += ["run.shards=2", "hydra.launcher.tasks_per_node=2", "run.max_failed=0", *SLOW]
    text = Sweep("rank", tmp_path, *line).end(status=1)
    assert "rank 1 is broken on purpose" in text and "_1_log.err" in text, text


def test_a_killed_rank_fails_the_job_and_the_rest_is_not_lost(
    tmp_path: Path, alone: dict[str, list[str]]
) -> None:
    line = [*ECHO, *SLOW, "run.shards=2", "hydra.launcher.tasks_per_node=2"]
    sweep = Sweep("killrank", tmp_path, *line)
    wait_for_rows(tmp_path, 2)
    job = sweep.job()
    ranks = {pid: _rank(pid) for pid in tasks_of(job)}
    os.kill(next(pid for pid, rank in ranks.items() if rank == "1"), signal.SIGKILL)
    sweep.process.wait(timeout=200)
    text = sweep.log.read_text()
    if sweep.process.returncode:  # the other rank may have done all the work
        assert "ended FAILED" in text
        Sweep("killrank", tmp_path, *line).end()
    assert lines_in(tmp_path) == alone


def _rank(pid: int) -> str:
    found = re.search(rb"SLURM_PROCID=(\d+)", Path(f"/proc/{pid}/environ").read_bytes())
    return found[1].decode() if found else ""


def test_eight_shards_interrupted_are_finished_by_three(
    tmp_path: Path, alone: dict[str, list[str]]
) -> None:
    line = [*ECHO, "backend.capacity=1", "backend.seconds_per_token=0.02"]
    sweep = Sweep("shards", tmp_path, *line, "run.shards=8")
    wait_for_rows(tmp_path, 4)
    ask("scancel", *{job.partition("_")[0] for job in sweep.jobs()})
    assert "CANCELLED" in sweep.end(status=1)
    left = sum(len(lines) for lines in lines_in(tmp_path).values())
    assert 0 < left < 24
    Sweep("shards", tmp_path, *ECHO, "run.shards=3").end()
    assert lines_in(tmp_path) == alone
    names = {p.name for p in next(tmp_path.rglob("run.json")).parent.iterdir()}
    assert not [name for name in names if "part" in name or name.startswith("journal")]


def test_each_shard_has_a_gpu_of_its_own(tmp_path: Path, alone: dict[str, list[str]]) -> None:
    line = [*ECHO, *SLOW, "run.shards=2"]
    line += ["hydra.launcher.tasks_per_node=2", "hydra.launcher.gpus_per_node=2"]
    Sweep("gpus", tmp_path, *line).end()
    folder = next(tmp_path.rglob("run.json")).parent
    attempts = attempts_of(folder)
    assert sorted(a["devices"] for a in attempts) == ["0", "1"]
    assert sorted(a["shard"] for a in attempts) == [0, 1]
    assert lines_in(tmp_path) == alone


def test_two_launches_of_one_sweep_at_once_both_end_with_every_row_once(
    tmp_path: Path, alone: dict[str, list[str]]
) -> None:
    first, second = (Sweep("twins", tmp_path, *ECHO, *SLOW) for _ in range(2))
    first.end()
    second.end()
    assert lines_in(tmp_path) == alone


def test_fifteen_hundred_points_are_planned_split_and_dry_submitted(tmp_path: Path) -> None:
    done = ("sampling.temperature=0.3", "model.step=7", "run.seed=3")
    Sweep("plan", tmp_path, *ECHO, *done, "cluster=local").end()
    grid = ("sampling.temperature=0,0.05,0.3", "model.step=range(0,50)", "run.seed=range(0,10)")
    before = ask("squeue", "-h", "-r", "-n", "plan")
    text = Sweep("plan", tmp_path, *ECHO, *grid, "run.plan=true").end()
    assert "1499 packs in 1499 jobs; nothing is submitted" in text
    assert "1 of 1500 points are complete and not submitted again" in text
    assert "1499 jobs in 2 arrays (the site takes 1001 in one)" in text
    assert re.search(r"array 0: 750 jobs, 256 at once: Job \d+ to start", text), text[-2000:]
    assert re.search(r"array 1: 749 jobs, 256 at once: Job \d+ to start", text)
    assert re.search(r"[\d.]+ GPU hours at the tokens/s of earlier attempts\n", text)
    assert ask("squeue", "-h", "-r", "-n", "plan") == before == ""


def test_an_array_larger_than_allowed_is_split_before_it_is_submitted(tmp_path: Path) -> None:
    line = [*ECHO, "run.limit=1", "run.seed=range(0,5)", "hydra.launcher.max_array=2"]
    text = Sweep("split", tmp_path, *line).end()
    assert re.findall(r"submitted (\d) jobs", text) == ["2", "2", "1"]


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("hydra.launcher.partition=nowhere", "partition"),
        ("hydra.launcher.cpus_per_task=99", "processors"),
        ("hydra.launcher.gpus_per_node=9", "onfiguration"),
    ],
)
def test_a_refused_request_is_explained(tmp_path: Path, option: str, says: str) -> None:
    text = Sweep("refused", tmp_path, *ECHO, option).end(status=2)
    assert "error: Slurm refuses the jobs: " in text and says in text
    assert option.removeprefix("hydra.launcher.") in text, "what was asked is in the sentence"


def test_a_launch_from_inside_a_job_works(tmp_path: Path) -> None:
    inner = f"{sys.executable} {ROOT}/launch/run.py {' '.join(ECHO)} cluster=slurm run.limit=2 "
    inner += f"run.root={tmp_path} hydra.launcher.mem_per_cpu=300M hydra.launcher.poll_seconds=2"
    line = ["sbatch", "--wait", "--mem=500M", f"--output={tmp_path}/outer.txt", "--wrap", inner]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (tmp_path / "outer.txt").read_text()
    assert sum(map(len, lines_in(tmp_path).values())) == 4


def test_compiled_kernels_are_cached_on_the_nodes_own_disk(tmp_path: Path) -> None:
    cache = tmp_path / "local-disk"
    line = [*ECHO, "run.limit=1", f"hydra.launcher.node_cache={cache}"]
    Sweep("cache", tmp_path / "out", *line, "hydra.launcher.setup=['echo before $PWD']").end()
    assert len(list(cache.glob("rethink-*/*/triton"))) == 1 and list(cache.glob("rethink-*/hub"))


def test_gaps_of_many_files_run_as_one_array_from_a_manifest(tmp_path: Path) -> None:
    grid = ("sampling.temperature=0,0.3", "model.step=0,50", "run.limit=3")
    Sweep("whole", tmp_path / "whole", *ECHO, *grid, "cluster=local", "-m").end()
    Sweep("gaps", tmp_path / "gaps", *ECHO, *grid, "cluster=local", "-m").end()
    files = sorted((tmp_path / "gaps").rglob("step*.jsonl"))
    for file in files[1:]:
        file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:2]))
    manifest = tmp_path / "gaps.tsv"
    status = [sys.executable, str(ROOT / "launch/status.py"), str(tmp_path / "gaps")]
    subprocess.run([*status, "--once", "--manifest", str(manifest)], check=True, cwd=ROOT)
    assert len(manifest.read_text().splitlines()) == 3
    text = Sweep("gaps", tmp_path / "gaps", *ECHO, f"run.manifest={manifest}").end()
    assert "submitted 3 jobs" in text
    assert lines_in(tmp_path / "gaps") == lines_in(tmp_path / "whole")


def test_work_of_minutes_in_jobs_of_one_ends_by_requeues_with_every_row_once(
    tmp_path: Path, alone: dict[str, list[str]]
) -> None:
    line = [*ECHO, "backend.capacity=1", "backend.seconds_per_token=0.013"]
    line += ["hydra.launcher.timeout_min=1", "hydra.launcher.signal_delay_s=20"]
    limited = Sweep("limited", tmp_path, *line)
    text = limited.end(seconds=540)
    assert "done" in text
    assert lines_in(limited.root) == alone
    job = re.search(r"submitted 1 jobs as (\d+)", text)
    assert job
    runs = ask("sacct", "-D", "-X", "-n", "-P", "-j", job[1], "-o", "State").splitlines()
    assert len(runs) >= 4 and runs[-1] == "COMPLETED" and set(runs[:-1]) <= {"REQUEUED"}, runs
    record = json.loads(next(limited.root.rglob("run.json")).read_text())
    assert sum(attempt["rows"] for attempt in record["attempts"]) == 24
    until(lambda: not limited.jobs(), "an empty queue")
