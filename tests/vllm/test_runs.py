"""Whole runs with vLLM: its death, what stays, and entropies by a copy. Run by `make test-vllm`."""

import json
import threading
import time
from pathlib import Path

import psutil
import pytest

from launch import api
from launch.config.setup import RunSetup, setup_of
from pipeline.protocols import BackendLostError
from pipeline.spec import SpecError
from tests.fakes.configs import composed
from tests.fakes.entered import VLLM

ROWS = 4


def setup(root: Path, *words: str) -> RunSetup:
    line = (
        *("task=demo", *VLLM, "cue=wait", f"run.root={root}", f"run.limit={ROWS}"),
        *("task.think_cap=12", "task.answer_cap=6", "backend.engine.max_num_seqs=1"),
        *("sampling.temperature=0", "sampling.logit_bias={2: -1.0}", *words),
    )
    return setup_of(composed(*line), line)


def lines(root: Path) -> list[str]:
    """Whole lines of rows on disk."""
    files = sorted(root.rglob("step*.jsonl"))
    return [line for path in files for line in path.read_text().splitlines(keepends=True)]


def kill_engine_after_a_row(root: Path, over: threading.Event) -> None:
    while not over.wait(0.05):
        if any(line.endswith("\n") for line in lines(root)):
            for child in psutil.Process().children(recursive=True):
                if "EngineCore" in " ".join(child.cmdline()):
                    child.kill()
                    return


def test_a_killed_engine_ends_the_run_with_its_rows_and_the_same_command_goes_on(
    tmp_path: Path,
) -> None:
    over = threading.Event()
    killer = threading.Thread(target=kill_engine_after_a_row, args=(tmp_path, over))
    killer.start()
    started = time.monotonic()
    try:
        with pytest.raises(BackendLostError, match=r"vLLM's engine has died: .*-9"):
            api.run(setup(tmp_path))
    finally:
        over.set()
        killer.join()
    assert time.monotonic() - started < 300
    kept = lines(tmp_path)
    assert 0 < len(kept) < ROWS
    outcome = api.run(setup(tmp_path))
    rows = [json.loads(line) for line in lines(tmp_path)]
    assert outcome.state == "complete" and len(rows) == ROWS
    assert {row["example_id"] for row in rows} >= {json.loads(x)["example_id"] for x in kept}
    for row in rows:
        for name in ("pass1", "pass2"):
            fields = row[name]
            assert fields["entropy_by"] == "hf", "a bias changes what vLLM shows to a processor"
            assert fields["entropy"] >= 0 and fields["tokens_total"] > 0


def test_a_model_that_vllm_cannot_load_is_told_in_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"vLLM does not start .*max_model_len"):
        api.run(setup(tmp_path, "backend.engine.max_model_len=99999"))
