"""Sweeps without a cluster: packs, failing points, missing checkpoints, manifests, plans."""

import asyncio
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from launch.config.compose import build_backend, to_spec
from launch.config.setup import RunSetup, setup_of
from launch.running.here import run_ready
from launch.status import Reader
from launch.sweeps.manifest import lines_of
from launch.sweeps.packs import pack
from launch.sweeps.point_table import print_points
from launch.sweeps.points import PointBuilder, SweepPoint
from pipeline.run.executor import execute
from pipeline.spec import SpecError
from pipeline.store.files import Row
from pipeline.store.row_index import read_rows
from tests.fakes.configs import ROOT, composed, point_of
from tests.run.test_executor import stable
from tests.test_run import command, rows_in, run, wait_for_rows
from tests.test_run_hf import differences

ECHO = ("task=crossword", "backend=echo", "cue=wait", "run.limit=3")
HERE = ("-m", *ECHO)


def test_a_point_of_a_sweep_is_composed_as_hydra_composes_it(tmp_path: Path) -> None:
    line = ("task=math", "backend=echo", "cue=[wait,neutral]", "sampling.temperature=0.25")
    line += (f"run.root={tmp_path}", "run.limit=1", "+task.data.hub=null", "run.ids=null")
    run("-m", *line)
    (made,) = tmp_path.rglob("config.yaml")
    assert made.read_text().strip() == run(*line, "--cfg", "job").stdout.strip()


def test_packed_points_load_once_and_have_in_float32_the_rows_they_have_apart(
    tmp_path: Path, tiny_llama: Callable[..., Path]
) -> None:
    line = [
        "task=crossword",
        "backend=hf",
        "model=local",
        f"model.path={tiny_llama(initializer_range=0.1)}",
    ]
    line += ["quantization=fp32", "backend.device=cpu", "run.limit=3", "cue=wait"]
    line += ["sampling.think_cap=8", "sampling.answer_cap=4", "sampling.num_samples=2"]
    line += ["model.name=tiny", "backend.batch_size=5"]
    found: dict[str, list[Row]] = {}
    for name in ("packed", "apart"):
        configs = [
            composed(*line, f"sampling.temperature={t}", f"run.root={tmp_path / name}")
            for t in (0, 0.5, 1.0)
        ]
        groups = [configs] if name == "packed" else [[config] for config in configs]
        for group in groups:
            backend = build_backend(to_spec(group[0]))
            points = [point_of(config, backend=backend) for config in group]
            sessions = asyncio.run(execute(points, backend))
            assert {session.status for session in sessions} == {"complete"}
            found.setdefault(name, []).extend(
                stable(row) for point in points for row in read_rows(point.rows_path)
            )
    assert len(found["packed"]) == 18
    assert differences(found["packed"], found["apart"]) == []


def test_a_plan_lists_packs_and_what_is_done_and_starts_nothing(tmp_path: Path) -> None:
    line = [*HERE, "sampling.temperature=0,0.3", f"run.root={tmp_path}", "run.pack=[temperature]"]
    run(*line, "sampling.temperature=0")
    before = sorted(tmp_path.rglob("*"))
    plan = run(*line, "run.plan=true").stdout
    assert "1 packs in 1 jobs; nothing is submitted" in plan
    assert "1 of 2 points are complete and not submitted again" in plan
    assert "GPU hours at the tokens/s of earlier attempts" in plan and "not measured" not in plan
    assert sorted(tmp_path.rglob("*")) == before


def test_a_sweep_ends_with_its_accuracies_by_swept_key_and_over_seeds(tmp_path: Path) -> None:
    line = [*HERE, "sampling.temperature=0,0.3", "run.seed=1,2", f"run.root={tmp_path}"]
    done = run(*line).stdout
    assert "accuracy, mean over seeds" in done and "run.seed" not in done.split("accuracy")[1]
    assert re.search(r"0\.3 +│ 2 +│ +[\d.]+ % +│ +[\d.]+ %", done)
    records = [json.loads(path.read_text()) for path in tmp_path.rglob("run.json")]
    typed = sorted(tuple(record["swept"].items()) for record in records)
    assert typed == [
        (("sampling.temperature", t), ("run.seed", s)) for t in ("0", "0.3") for s in ("1", "2")
    ]
    points = Reader([tmp_path]).points()
    names = sorted(" ".join(point.name.split(" ")[1:]) for point in points)
    assert names[0] == "sampling.temperature=0 run.seed=1" and len(set(names)) == 4
    summary = re.sub(r"[│┃\s]+", " ", done.partition("4 points")[0])
    assert "sampling.temperature=0.3 run.seed=2" in summary


def test_a_sweep_over_rows_that_other_settings_judged_says_so(tmp_path: Path) -> None:
    line = ["-m", "task=qa", "backend=echo", "run.limit=2", "run.seed=1,2", f"run.root={tmp_path}"]
    assert "were judged by" not in run(*line).stdout
    again = run(*line, "task.grader=exact").stdout
    assert again.count("2 rows were judged by other settings of the task than this sweep's") == 2
    assert "run.seed=2: 2 rows" in again and "--recompute" in again


def test_a_point_with_a_folder_of_its_own_is_called_by_that_folder(tmp_path: Path) -> None:
    point = point_of(composed(*ECHO, f"run.dir={tmp_path}/mine"))
    assert point.title == f"{tmp_path}/mine"
    point = replace(point, swept={"run.seed": "3"})
    assert point.title == f"{tmp_path}/mine run.seed=3"


def test_a_failing_point_does_not_stop_the_others_and_the_table_says_why(tmp_path: Path) -> None:
    good = "components.backends.echo.Echo"
    both = f"backend._target_=tests.slurm.failing.FailsInRank,{good}"
    done = run(*HERE, both, f"run.root={tmp_path}", status=1)
    assert "2 points" in done.stdout and "rank 0 is broken on purpose" in done.stdout
    assert re.search(r"3/3 +│ done", done.stdout) and re.search(r"0/3 +│ failed", done.stdout)


def test_processes_run_like_jobs_and_leave_tracebacks_and_status(tmp_path: Path) -> None:
    good = "components.backends.echo.Echo"
    both = f"backend._target_=tests.slurm.failing.FailsInRank,{good}"
    done = run(*ECHO, both, "cluster=debug", f"run.root={tmp_path}", status=1)
    (log,) = re.findall(r"log: (\S+)\)", done.stdout)
    assert "broken on purpose" in Path(log).read_text() and "Traceback" in Path(log).read_text()
    assert re.search(r"3/3 +│ done", done.stdout) and re.search(r"0/3 +│ failed", done.stdout)


def test_usr2_in_a_process_flushes_and_it_goes_on_under_the_same_id(tmp_path: Path) -> None:
    line = [*ECHO[:3], "run.limit=8", "cluster=debug", f"run.root={tmp_path / 'cut'}"]
    slow = ["backend.capacity=1", "backend.seconds_per_token=0.002"]
    with subprocess.Popen(command(*line, *slow), cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        wait_for_rows(tmp_path / "cut", 2)
        (job,) = (tmp_path / "cut").glob(".sweeps/*/.submitit/[0-9]*")
        children = Path(f"/proc/{job.name}/task/{job.name}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGUSR2)
        assert process.wait(timeout=120) == 0
    run(*ECHO[:3], "run.limit=8", f"run.root={tmp_path / 'whole'}")
    assert rows_in(tmp_path / "cut") == rows_in(tmp_path / "whole")
    said = next(job.glob("*_log.err")).read_text() + next(job.glob("*_log.out")).read_text()
    assert said.count("Starting with") == 2 and "Requeued job" in said


def test_a_missing_checkpoint_fails_is_skipped_or_is_awaited(
    tmp_path: Path, tiny_llama: Callable[..., Path]
) -> None:
    series = tmp_path / "series"
    series.mkdir()
    line = ["task=crossword", "backend=hf", "model=local", f"model.path={tiny_llama()}"]
    line += ["quantization=fp32", "run.limit=1", f"model.checkpoints={series}", "model.name=tiny"]
    line += ["sampling.think_cap=2", "sampling.answer_cap=2"]

    def member(mode: str) -> SweepPoint:
        made = to_spec(composed(*line, "model.step=50", f"run.missing_checkpoint={mode}"))
        return PointBuilder().sweep_point(RunSetup(made, overrides=["model.step=50"]))

    with pytest.raises(SpecError, match=r"model.step must be one that .* .the point model.step=50"):
        member("fail")
    skipped, late = member("skip"), member("wait")
    assert "model.step must be one that" in skipped.problem
    assert print_points([skipped], {}) == 0 and print_points([late], {}) == 1
    wait = [
        *line,
        "model.step=50",
        "cluster=debug",
        "run.missing_checkpoint=wait",
        f"run.root={tmp_path}",
    ]
    with subprocess.Popen(command(*wait), cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        (series / ".new").symlink_to(tiny_llama())
        time.sleep(4)
        assert process.poll() is None and not list(tmp_path.rglob("step*.jsonl"))
        (series / ".new").rename(series / "checkpoint-50")
        out, _ = process.communicate(timeout=200)
    assert process.returncode == 0 and re.search(r"1/1 +│ done", out)


def setup(*overrides: str) -> RunSetup:
    return setup_of(composed(*ECHO, *overrides), [*ECHO, *overrides])


@pytest.mark.parametrize("header", [True, False])
def test_a_manifest_names_points_that_are_no_grid(tmp_path: Path, header: bool) -> None:
    text = "sampling.temperature\trun.seed\trun.limit\n0.3\t1\t2\n# later\n0.5\t2\t1\n"
    plain = "sampling.temperature=0.3\trun.seed=1\trun.limit=2\n"
    plain += "sampling.temperature=0.5\trun.seed=2\trun.limit=1\n"
    (tmp_path / "gaps.tsv").write_text(text if header else plain)
    base = setup(f"run.manifest={tmp_path / 'gaps.tsv'}")
    expected = [
        [*ECHO[:3], f"run.limit={n}", f"sampling.temperature={t}", f"run.seed={s}"]
        for t, s, n in ((0.3, 1, 2), (0.5, 2, 1))
    ]
    assert lines_of(base, base.overrides) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "at least one point"),
        ("run.seed\trun.limit\n1\n", "gaps.tsv:2: must have 2 values"),
        ("run.seed=1\trun.limit\n", "gaps.tsv:1: every cell must be key=value, got 'run.limit'"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused_by_line(
    tmp_path: Path, text: str, says: str
) -> None:
    (tmp_path / "gaps.tsv").write_text(text)
    base = setup(f"run.manifest={tmp_path / 'gaps.tsv'}")
    with pytest.raises(SpecError, match=re.escape(says)):
        lines_of(base, base.overrides)


def sizes(*names: str, **changes: str) -> list[int]:
    grid = [(t, seed) for t in (0, 0.3) for seed in (1, 2)]
    pack_ = f"run.pack=[{','.join(names)}]"
    made = [setup(f"sampling.temperature={t}", f"run.seed={s}", pack_) for t, s in grid]
    return [len(group) for group in pack([SweepPoint(d) for d in made])]


def test_points_are_packed_by_the_keys_that_are_named(tmp_path: Path) -> None:
    assert sizes() == [1, 1, 1, 1]
    assert sizes("temperature") == sizes("sampling.temperature") == [2, 2]
    assert sizes("temperature", "seed") == sizes("*") == [4]
    with pytest.raises(SpecError, match=r"run.pack must name keys .* got temprature"):
        sizes("temprature")


def test_points_of_different_models_never_share_a_load() -> None:
    made = [setup(f"backend.capacity={n}", "run.pack=['*']") for n in (1, 1, 2)]
    assert [len(group) for group in pack([SweepPoint(d) for d in made])] == [2, 1]


def test_shards_of_a_sweep_are_processes_that_share_the_rows(tmp_path: Path) -> None:
    line = [*ECHO[:3], "run.limit=8"]
    run(*line, "cluster=debug", "run.shards=2", f"run.root={tmp_path / 'two'}")
    run(*line, f"run.root={tmp_path / 'one'}")
    assert rows_in(tmp_path / "two") == rows_in(tmp_path / "one")


def test_a_signal_while_the_model_loads_ends_the_run(tmp_path: Path) -> None:
    config = composed(*ECHO, f"run.root={tmp_path}")
    spec = to_spec(config)

    class Slow(type(build_backend(spec))):  # type: ignore[misc]
        async def __aenter__(self) -> object:
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(60)
            return self

    from launch.running import here

    backend = Slow(spec.model)
    before, here.STOP_SECONDS = here.STOP_SECONDS, 0.2
    try:
        outcome = run_ready([point_of(config, backend=backend)], backend, ["{}"])
    finally:
        here.STOP_SECONDS = before
    assert outcome.status == here.INTERRUPTED
