"""Architectures of ours from the command line: two passes, resume, rows that stand alone."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from components.models.architectures.byte_tokenizer import byte_tokenizer
from tests.fakes.configs import ROOT
from tests.models.test_memory_transformer import CHAPTERS, model, written

LINE = ("task=qa", "cue=wait", "quantization=fp32", "sampling.max_new_tokens=12")


def run(tmp_path: Path, root: str, *overrides: str) -> list[dict[str, Any]]:
    """The rows of a run that completes."""
    places = (f"run.root={tmp_path / root}", f"run.cache_dir={tmp_path / 'cache'}")
    line = [sys.executable, str(ROOT / "launch/run.py"), *LINE, *places]
    done = subprocess.run(
        [*line, *overrides], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (tmp_path / root).rglob("step*.jsonl")
    return [json.loads(line) for line in path.open(encoding="utf-8")]


def memory_adapter(folder: Path, strategy: str) -> str:
    """A memory adapter of a random backbone that reads bytes."""
    made = model(vocabulary=256, **CHAPTERS, routing_strategy_inference=strategy)
    byte_tokenizer().save_pretrained(written(folder / "checkpoint-3", made))
    return str(folder / "checkpoint-3")


@pytest.mark.parametrize("kind", ["bdh_tiny", "mini_llm_tiny", "hybrid", "token"])
def test_two_passes_and_entropies_resume_and_rows_do_not_depend_on_their_company(
    tmp_path: Path, kind: str
) -> None:
    which = [f"model={kind}"]
    if kind in ("hybrid", "token"):
        which = ["model=local", f"model.path={memory_adapter(tmp_path / 'm', kind)}"]
    run(tmp_path, "resumed", *which, "run.limit=1", "backend.batch_size=1")
    resumed = run(tmp_path, "resumed", *which, "run.limit=4", "backend.batch_size=3")
    whole = run(tmp_path, "whole", *which, "run.limit=4", "backend.batch_size=4")
    for row, same in zip(resumed, whole, strict=True):
        for name in ("pass1", "pass2"):
            assert row[name]["token_ids"] == same[name]["token_ids"]
            assert row[name]["entropies"] == pytest.approx(same[name]["entropies"], abs=1e-4)
            assert len(row[name]["token_ids"]) > 6


def test_memory_is_routed_as_the_run_says(tmp_path: Path) -> None:
    which = ("model=local", f"model.path={memory_adapter(tmp_path / 'm', 'sequence')}")
    given = run(tmp_path, "given", *which, "run.limit=1", "model.routing=token")
    own = run(tmp_path, "own", *which, "run.limit=1")
    assert given[0]["fingerprint"] != own[0]["fingerprint"]
    assert given[0]["pass1"]["token_ids"] != own[0]["pass1"]["token_ids"]
