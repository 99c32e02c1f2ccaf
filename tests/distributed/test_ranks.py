"""Runs of several ranks: rows equal those of one, and no rank outlives or waits for another."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.conftest import ENVIRONMENT, HERE, ROOT, on_ranks, said

RUN = ROOT / "launch" / "run.py"
LENGTHS = (1, 90, 3, 40, 2, 200, 17)  # words of the prompts
ZERO = (
    "backend=deepspeed",
    "backend.batch_size=3",
    "backend.config.zero_optimization.stage3_param_persistence_threshold=0",
)
Numbers = dict[tuple[str, int, str], tuple[list[int], list[float]]]


@pytest.fixture(scope="session")
def line(tiny_llama: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A two-pass run of seven prompts, two samples each, with stop strings."""
    data = tmp_path_factory.mktemp("data") / "prompts.jsonl"
    words = "the quick brown fox jumps over a lazy dog and runs far away".split()
    rows = [
        {"id": f"q{n}", "question": " ".join(words[(7 * i + n) % 13] for i in range(count))}
        for n, count in enumerate(LENGTHS)
    ]
    data.write_text("\n".join(map(json.dumps, rows)))
    return [
        "task=qa",
        f"task.data.path={data}",
        "task.columns.answer=null",
        "task.tagged_phases=true",
        "cue=wait",
        "model=local",
        f"model.path={tiny_llama(num_hidden_layers=3)}",
        "quantization=fp32",
        "backend.device=cpu",
        "backend.threads=1",
        "sampling.think_cap=12",
        "sampling.answer_cap=6",
        "sampling.num_samples=2",
        "sampling.temperature=1",
        "run.name=t",
    ]


@pytest.fixture(scope="session")
def alone(line: Sequence[str], tmp_path_factory: pytest.TempPathFactory) -> Numbers:
    """The rows of one process, by the reference decoder."""
    root = tmp_path_factory.mktemp("alone")
    words = ["backend=hf", "backend.decoder=generate", "backend.batch_size=6"]
    process = subprocess.Popen(
        [sys.executable, str(RUN), *line, *words, f"run.root={root}"],
        cwd=ROOT,
        env=os.environ | ENVIRONMENT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    text = said(process)
    assert process.returncode == 0, text
    return numbers(root)


def rows_of(root: Path) -> list[dict[str, Any]]:
    return [
        json.loads(row)
        for file in root.glob("t/*/step-0/step*.jsonl")
        for row in file.read_text().splitlines()
    ]


def numbers(root: Path) -> Numbers:
    """Ids and mean entropies of every pass; a row that is there twice fails."""
    rows = rows_of(root)
    assert len({(row["example_id"], row["sample_idx"]) for row in rows}) == len(rows)
    return {
        (row["example_id"], row["sample_idx"], name): (
            row[name]["token_ids"],
            [row[name]["entropy_think"], row[name]["entropy_answer"]],
        )
        for row in rows
        for name in ("pass1", "pass2")
    }


def assert_same(found: Numbers, expected: Numbers) -> None:
    assert found.keys() == expected.keys()
    for key, (ids, entropies) in expected.items():
        assert found[key][0] == ids, key
        assert found[key][1] == pytest.approx(entropies, abs=1e-3), key


def each_rank(count: int, words: Sequence[str]) -> list[subprocess.Popen[str]]:
    """One process a rank with no launcher that would end them."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count)}
    return [started(words, meeting | {"RANK": str(n), "LOCAL_RANK": str(n)}) for n in range(count)]


def started(words: Sequence[str], more: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=ROOT,
        env=os.environ | ENVIRONMENT | dict(more),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def ended_within(processes: Sequence[subprocess.Popen[str]], seconds: float) -> list[str]:
    """What each process printed; fails if one goes on for longer."""
    end = time.monotonic() + seconds
    try:
        return [process.communicate(timeout=end - time.monotonic())[0] for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def test_zero_over_two_ranks_gives_the_rows_of_one_process(
    line: Sequence[str], alone: Numbers, tmp_path: Path
) -> None:
    runner = ("-m", "deepspeed.launcher.runner", "--num_gpus=2", "--no_local_rank")
    words = (*runner, str(RUN), *line, *ZERO, f"run.root={tmp_path}")
    process = started(words, {})
    (text,) = ended_within([process], 200)
    assert process.returncode == 0, text[-4000:]
    assert_same(numbers(tmp_path), alone)


def test_zero_on_one_rank_with_weights_in_memory_gives_them_too(
    line: Sequence[str], alone: Numbers, tmp_path: Path
) -> None:
    offload = "backend.config.zero_optimization.offload_param.device=cpu"
    process = started((str(RUN), *line, *ZERO, offload, f"run.root={tmp_path}"), {})
    (text,) = ended_within([process], 200)
    assert process.returncode == 0, text[-4000:]
    assert_same(numbers(tmp_path), alone)


def test_tensor_parallel_gives_the_rows_of_one_process_and_has_nothing_to_do_again(
    line: Sequence[str], alone: Numbers, tmp_path: Path
) -> None:
    words = (*line, "backend=hf", "backend.tp_plan=auto", f"run.root={tmp_path}")
    for _ in range(2):
        process = on_ranks(2, RUN, *words)
        text = said(process, 200)
        assert process.returncode == 0, text[-4000:]
        assert text.count("complete: 14 of 14 rows") == 1
    assert_same(numbers(tmp_path), alone)


def test_a_rank_that_is_killed_ends_the_run_and_the_same_command_goes_on(
    line: Sequence[str], alone: Numbers, tmp_path: Path
) -> None:
    words = (str(RUN), *line, *ZERO, "backend.batch_size=1", f"run.root={tmp_path}")
    ranks = each_rank(2, words)
    wait_for_rows(tmp_path, 1, ranks)
    ranks[1].kill()
    first, _ = ended_within(ranks, 30)
    assert ranks[0].returncode not in (0, None)
    assert "rank 1 has gone without a word" in first
    done = len(rows_of(tmp_path))
    assert 0 < done < 14

    ranks = each_rank(2, words)
    wait_for_rows(tmp_path, done + 1, ranks)
    for rank in ranks:  # as a launcher that is interrupted does
        rank.send_signal(signal.SIGTERM)
    ended_within(ranks, 30)
    assert [rank.returncode for rank in ranks] == [130, 0]

    ranks = each_rank(2, words)
    texts = ended_within(ranks, 200)
    assert [rank.returncode for rank in ranks] == [0, 0], texts
    assert_same(numbers(tmp_path), alone)


def wait_for_rows(root: Path, count: int, ranks: Sequence[subprocess.Popen[str]]) -> None:
    end = time.monotonic() + 200
    while not any(len(file.read_text().splitlines()) >= count for file in row_files(root)):
        if time.monotonic() > end or any(rank.poll() is not None for rank in ranks):
            pytest.fail(f"no rows: {ended_within(ranks, 1)}")
        time.sleep(0.05)


def row_files(root: Path) -> list[Path]:
    return list(root.glob("t/*/step-0/step*.jsonl"))


def test_an_error_on_one_rank_ends_all_with_its_traceback() -> None:
    ranks = each_rank(3, (str(HERE / "failing.py"),))
    texts = ended_within(ranks, 60)
    assert [rank.returncode for rank in ranks] == [1, 1, 1]
    assert "rank 2 failed:" in texts[0]
    for text in (texts[0], texts[2]):
        assert "Traceback" in text and "RuntimeError: no memory for this" in text
    assert "rank 0 has gone" in texts[1]


def test_one_job_of_two_tasks_is_two_ranks(
    line: Sequence[str], alone: Numbers, tmp_path: Path
) -> None:
    """What cluster=slurm does, with submitit's processes in the place of Slurm's."""
    cluster = ("-m", "cluster=debug", "hydra.launcher.tasks_per_node=2")
    words = (*line, "backend=hf", "backend.tp_plan=auto", f"run.root={tmp_path}")
    process = started((str(RUN), *cluster, *words), {})
    (text,) = ended_within([process], 200)
    assert process.returncode == 0, text[-4000:]
    assert_same(numbers(tmp_path), alone)
