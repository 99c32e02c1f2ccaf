"""What Slurm is asked for, without one: stand-ins for its commands note what they are told."""

import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from launch.config.cluster import check_cluster
from launch.config.compose import to_spec
from launch.config.setup import RunSetup
from launch.sweeps import job
from launch.sweeps.submit import QueueError, slurm_states
from launch.sweeps.submitted_jobs import SubmittedJob, Watch
from pipeline.spec import SpecError
from tests.fakes.configs import ROOT, composed
from tests.test_run import command

ECHO = ("task=crossword", "backend=echo", "run.limit=1", "hydra.launcher.follow=false")


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """`stand_ins(name, script)`: a command of Slurm that runs a shell script instead."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def make(name: str, script: str) -> Path:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    for name in ("srun", "scontrol", "squeue", "sacct"):
        make(name, "exit 0")
    make("sbatch", f"cp $1 {tmp_path}/script-$$.sh; echo Submitted batch job 77")
    return make


def submitted(tmp_path: Path, *overrides: str) -> str:
    """The script that a sweep hands to sbatch, without what differs between machines."""
    line = command(*ECHO, *overrides, f"run.root={tmp_path / 'out'}")
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (script,) = tmp_path.glob("script-*.sh")
    text = script.read_text().replace(str(tmp_path), "<tmp>")
    return re.sub(r"\S*/python\S* -u", "<python> -u", text)


def test_the_golden_script_of_a_sweep(
    tmp_path: Path, stand_ins: object, golden: Callable[[str, str], None]
) -> None:
    options = ("partition=gpu", "account=lab", "qos=long", "gpus_per_node=1", "cpus_per_task=16")
    options += ("mem_gb=128", "array_parallelism=4", "setup=['module load cuda']")
    line = [f"hydra.launcher.{option}" for option in options]
    text = submitted(tmp_path, "cluster=slurm", "sampling.temperature=0,0.3,0.7", *line)
    assert "#SBATCH --array=0-2%3" in text
    golden("slurm.sh", text)


def test_the_golden_script_of_a_preemptible_job(
    tmp_path: Path, stand_ins: object, golden: Callable[[str, str], None]
) -> None:
    golden("slurm_preemptible.sh", submitted(tmp_path, "cluster=slurm_preemptible"))


def test_a_sites_file_may_lie_outside_the_repository(tmp_path: Path, stand_ins: object) -> None:
    site = tmp_path / "site/cluster/mysite.yaml"
    site.parent.mkdir(parents=True)
    text = "# @package _global_\ndefaults: [slurm, _self_]\n"
    site.write_text(text + "hydra: {launcher: {partition: ours, node_cache: /scratch}}\n")
    where = f"hydra.searchpath=[file://{tmp_path}/site]"
    assert "--partition=ours" in submitted(tmp_path, where, "cluster=mysite")


def test_where_slurm_is_configured_reaches_sbatch(
    tmp_path: Path, stand_ins: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    note = f"echo $SLURM_CONF:$SLURM_JOB_ID > {tmp_path}/environment"
    stand_ins("sbatch", f"{note}; cp $1 {tmp_path}/script-$$.sh; echo Submitted batch job 77")
    monkeypatch.setenv("SLURM_CONF", "/elsewhere/slurm.conf")
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    submitted(tmp_path, "cluster=slurm", "hydra.launcher.wckey=lab")
    assert (tmp_path / "environment").read_text() == "/elsewhere/slurm.conf:\n"
    (script,) = tmp_path.glob("script-*.sh")
    assert "--wckey=lab" in script.read_text()


@pytest.mark.parametrize(
    ("option", "names"),
    [
        ("gpus_per_node=1 gpus_per_task=1", "gpus_per_node and gpus_per_task"),
        ("timeout_min=1", "signal_delay_s must be below the time limit, 60 s"),
        ("nodes=0", "hydra.launcher.nodes must be 1 or more"),
        ("poll_seconds=0", "hydra.launcher.poll_seconds must be above 0"),
        ("max_array=0", "hydra.launcher.max_array must be 1 or more"),
        ("max_num_timeout=-1", "hydra.launcher.max_num_timeout must be 0 or more"),
        ("mem_gb=-2", "hydra.launcher.mem_gb must be above 0"),
        ("where=moon", "hydra.launcher.where must be in"),
    ],
)
def test_impossible_options_are_refused_by_name(option: str, names: str) -> None:
    changes = [f"hydra.launcher.{part}" for part in option.split()]
    config = composed("task=math", "cluster=slurm", *changes, with_hydra=True)
    options = {k: v for k, v in config.hydra.launcher.items() if k not in ("folder", "name")}
    with pytest.raises(SpecError, match=names):
        check_cluster(options)


def test_states_come_from_the_queue_and_ends_from_accounting(
    stand_ins: Callable[[str, str], Path],
) -> None:
    stand_ins("squeue", "echo '5_0|RUNNING'; echo '5_1|PENDING'; echo '5_2|COMPLETING'")
    ends = ("5_3|PREEMPTED", "5_4|CANCELLED by 0", "5_5|RUNNING", "5_1|NODE_FAIL", "5_6|TIMEOUT")
    stand_ins("sacct", "; ".join(f"echo '{line}'" for line in ends))
    states = slurm_states([f"5_{index}" for index in range(8)])
    assert list(states.values()) == [
        "RUNNING",
        "PENDING",  # requeued after the death of its node, whatever accounting says
        "COMPLETING",
        "PREEMPTED",
        "CANCELLED",
        "GONE",  # accounting did not hear of its end
        "TIMEOUT",
        "GONE",
    ]


def test_preempted_cancelled_and_vanished_jobs_end_the_watch(
    stand_ins: Callable[[str, str], Path],
) -> None:
    stand_ins("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    stand_ins("sacct", "echo '5_0|PREEMPTED'; echo '5_1|CANCELLED by 0'")
    watch = Watch(1.0, [SubmittedJob(f"5_{index}", [], "logs/%j") for index in range(3)])
    watch.look()
    assert not watch.alive and watch.counts() == "1 cancelled, 1 gone, 1 preempted"
    assert "5_0 ended PREEMPTED" in watch.jobs[0].failure()


def test_a_queue_that_does_not_answer_is_asked_again_but_not_for_ever(
    stand_ins: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins("squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    watch = Watch(1.0, [SubmittedJob("5", [], "logs/%j")])
    watch.look()
    assert watch.alive
    monkeypatch.setattr("launch.sweeps.submitted_jobs.PATIENCE", -1.0)
    with pytest.raises(QueueError, match="has not answered"):
        watch.look()


def test_a_shard_takes_one_of_the_devices_it_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    for visible, rank, own in (("4,5,6", 1, "5"), ("2", 3, "2"), ("", 0, "")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        job.take_one_device(rank)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == own


@pytest.mark.parametrize(
    ("shown", "preempted"),
    [("PreemptTime=2026-01-01T00:00:00", True), ("PreemptTime=None", False), ("", False)],
)
def test_sigterm_of_a_preemption_is_told_from_a_cancelled_job(
    stand_ins: Callable[[str, str], Path],
    monkeypatch: pytest.MonkeyPatch,
    shown: str,
    preempted: bool,
) -> None:
    stand_ins("scontrol", f"echo 'JobId=9 JobState=RUNNING {shown} Priority=1'")
    monkeypatch.setenv("SLURM_JOB_ID", "9")
    assert job.is_being_preempted() is preempted
    monkeypatch.delenv("SLURM_JOB_ID")
    assert not job.is_being_preempted()


def test_a_stopped_job_is_requeued_once_by_rank_0_or_ends_with_its_status(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr("launch.sweeps.job.time.sleep", lambda seconds: None)
    asked: list[int] = []
    for rank, number in ((0, signal.SIGUSR2), (1, signal.SIGUSR2), (0, signal.SIGTERM)):
        outcome = job.PointsOutcome([], {number})
        with pytest.raises(SystemExit) as caught:
            job.stopped(outcome, rank, lambda number, frame: asked.append(number))
        assert caught.value.code == 130
    assert asked == [signal.SIGUSR2]


def test_a_job_waits_where_a_person_is_refused() -> None:
    spec = to_spec(composed("task=crossword", "backend=echo", "run.shards=2"))
    made = job.as_shard(RunSetup(spec), 1)
    assert made.spec.run.wait and made.spec.run.shard == 1 and not spec.run.wait
