"""Every option on SmolLM2: as near to float32, and as small, as was measured. Takes minutes."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from launch import quantize_check as door
from pipeline.protocols import ForcedTokens
from tests.fakes.hf_requests import request
from tests.quantization.test_options import backend

pytestmark = pytest.mark.slow

# Largest divergence (nats) and least agreement of the likeliest token that 254 positions may have,
# some way from what was measured; and bytes beside float32.
EXPECTED = {
    "none": (0.0, 1.0, 1.0),
    "fp32": (0.0, 1.0, 1.0),
    "bf16": (0.005, 0.93, 0.5),
    "fp16": (0.0005, 0.98, 0.5),
    "bnb_nf4": (0.4, 0.6, 0.21),
    "bnb_fp4": (0.65, 0.5, 0.21),
    "bnb_int8": (0.04, 0.86, 0.3),
    "torchao_int8wo": (0.01, 0.9, 0.41),
    "torchao_int8dyn": (0.06, 0.82, 0.41),
    "torchao_fp8wo": (0.04, 0.87, 0.41),
    "dynamic_int8": (2.2, 0.2, 0.46),
}
ON_CUDA = {"torchao_int4wo", "torchao_fp8dyn"}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    pytest.importorskip("bitsandbytes", reason="the extra `quantization` is not installed")
    pytest.importorskip("torchao", reason="the extra `quantization` is not installed")
    out = tmp_path_factory.mktemp("check")
    words = ["model=smollm2", "backend.device=cpu", "check.tokens=256", "check.length=128"]
    assert door.check([*words, "check.new_tokens=4", f"out={out}"]) == 0
    lines = (out / "checks.jsonl").read_text().splitlines()
    return {row["quantization"]: row for row in map(json.loads, lines)}


def test_every_option_is_there_but_those_that_need_a_gpu(rows: dict[str, Any]) -> None:
    assert set(rows) == set(EXPECTED)
    assert set(door.options_of([])) - set(rows) == ON_CUDA | {"bnb_fp8"}


@pytest.mark.parametrize("name", EXPECTED)
def test_it_is_as_near_and_as_small_as_was_measured(rows: dict[str, Any], name: str) -> None:
    row, whole = rows[name], rows["none"]
    divergence, agreement, share = EXPECTED[name]
    assert row["kl"] <= divergence and row["top1"] >= agreement
    assert row["bytes"] / whole["bytes"] == pytest.approx(share, abs=0.02)
    assert row["kl"] > 0 or name in ("none", "fp32")


def test_four_bits_are_the_same_after_text_was_generated(smollm2: Path) -> None:
    """bitsandbytes packs 4-bit weights anew at the first forward pass."""
    made = backend(smollm2, "bnb_nf4")
    row = ForcedTokens([1, 500, 600], list(range(1000, 1040)))

    async def twice() -> list[Any]:
        async with made:
            before = await made.score([row])
            await made.generate(request(0, cap=4))
            return [*before, *(await made.score([row]))]

    before, after = asyncio.run(twice())
    assert before.logprobs == pytest.approx(after.logprobs, abs=1e-3)
