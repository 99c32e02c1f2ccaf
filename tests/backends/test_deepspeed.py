"""What backend=deepspeed refuses in a sentence; `make test-distributed` runs it over ranks."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from components.backends.zero_inference.backend import DeepSpeedBackend
from components.quantization.library import LibraryQuantization
from components.quantization.precision import Precision
from pipeline.spec import ModelSpec, SpecError


def test_a_missing_deepspeed_is_told_and_leaves_no_process_group(
    tiny_llama: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    model = ModelSpec(name="tiny", path=str(tiny_llama()))

    backend = DeepSpeedBackend(model, Precision("float32"), device="cpu", threads=1)
    with pytest.raises(SpecError, match="backend=deepspeed needs DeepSpeed: pip install"):
        asyncio.run(backend.__aenter__())
    assert not torch.distributed.is_initialized()  # as whoever runs next needs it


def test_quantized_weights_are_refused_before_anything_is_read() -> None:
    config = "torchao.quantization.Int8WeightOnlyConfig"
    quantization = LibraryQuantization("torchao_int8wo", config)
    with pytest.raises(SpecError, match="quantization must be none, fp32, bf16 or fp16"):
        DeepSpeedBackend(ModelSpec(name="tiny", path="/nowhere"), quantization, device="cpu")


@pytest.mark.parametrize(("way", "place"), [("stage3", "none"), ("engine", "nvme")])
def test_a_way_to_load_that_there_is_not_is_refused_before_anything_is_read(
    tmp_path: Path, way: str, place: str
) -> None:
    offload = {"device": place, "nvme_path": str(tmp_path) if place == "nvme" else None}
    config = {"zero_optimization": {"offload_param": offload}}
    rule = {
        "stage3": "backend.load_checkpoint must be one of consolidated, engine, universal",
        "engine": "backend.load_checkpoint must be consolidated with offload_param.device=nvme",
    }
    with pytest.raises(SpecError, match=rule[way]):
        DeepSpeedBackend(
            ModelSpec(name="tiny", path="/nowhere"),
            Precision(),
            device="cpu",
            load_checkpoint=way,
            config=config,
        )


def test_given_ids_are_not_scored_over_ranks() -> None:
    assert not DeepSpeedBackend.capabilities.scores
