"""A run in four bits is the run in full precision but for what the precision changes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launch import api

# What a row says of its precision, of the attempt that made it, and what the model made.
PRECISION = {"quantization", "fingerprint"}
ATTEMPT = {"attempt", "seconds"}


def rows_in(folder: Path, root: Path, quantization: str) -> list[dict[str, Any]]:
    setup = api.compose(
        "task=qa",
        "run.limit=3",
        "cue=wait",
        "backend=hf",
        "backend.device=cpu",
        "backend.threads=1",
        "model=local",
        f"model.path={folder}",
        f"quantization={quantization}",
        "sampling.max_new_tokens=6",
        "run.name=run",
        f"run.root={root / quantization}",
    )
    outcome = api.run(setup)
    (file,) = Path(outcome.folder).glob("step*.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_two_passes_in_four_bits_differ_only_where_they_must(
    tiny_llama: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tiny_llama()
    plain, coarse = (rows_in(folder, tmp_path, name) for name in ("none", "bnb_nf4"))
    assert len(plain) == len(coarse) == 3
    for left, right in zip(plain, coarse, strict=True):
        assert {name for name in left if left[name] != right.get(name)} >= PRECISION
        passes = {name for name in left if name.startswith("pass") and isinstance(left[name], dict)}
        assert passes == {"pass1", "pass2"} and left.keys() == right.keys()
        same = left.keys() - PRECISION - ATTEMPT - passes
        judged = {name for name in same if left[name] != right[name]}
        assert all("correct" in name or "improved" in name for name in judged), judged
        for name in passes:
            assert left[name].keys() == right[name].keys()
            for field in ("cue", "cue_hash"):
                assert left[name].get(field) == right[name].get(field)
        assert left["pass1"]["prompt_tokens"] == right["pass1"]["prompt_tokens"]
        assert left["pass1"]["entropies"] != right["pass1"]["entropies"]
