"""Models over several devices or ranks: what is refused before anything is loaded."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from components.backends.hf.spreading import tensor_parallel
from components.backends.zero_inference.settings import engine_settings, settings_of
from components.ranks.place import Place, place
from launch import api
from pipeline.protocols import Generation, Group, Message, Prompt, Request
from pipeline.spec import SpecError

HF = ("task=qa", "backend=hf", "backend.device=cpu", "backend.threads=1", "model=local")


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    yield


def refusal(*words: str) -> str:
    with pytest.raises(SpecError) as caught:
        api.open_backend(api.compose("task=qa", "backend=hf", "backend.device=cpu", *words))
    return str(caught.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("backend.decoder=slots",), "backend.decoder must be auto or generate"),
        (("backend.slots=4",), "backend.slots must be null"),
        (("backend.device_map=auto",), "backend.tp_plan must be null with backend.device_map"),
        (("backend.kv_cache_dtype=fp8",), "backend.kv_cache_dtype must be auto"),
    ],
)
def test_what_does_not_go_with_tensor_parallel_is_refused(words: tuple[str], said: str) -> None:
    assert said in refusal("backend.tp_plan=auto", *words)


def test_ranks_that_nobody_asked_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "backend.tp_plan must be auto on 2 ranks" in refusal()


def test_one_rank_cannot_share_layers(tiny_llama: Callable[..., Path]) -> None:
    words = (*HF, f"model.path={tiny_llama()}", "backend.tp_plan=auto")
    with pytest.raises(SpecError, match="torchrun --nproc-per-node"):
        generated(*words)


def test_heads_that_cannot_be_dealt_to_ranks_are_refused() -> None:
    sizes = {"num_attention_heads": 9, "num_key_value_heads": 3}
    for config in (sizes, {"text_config": sizes}):
        with pytest.raises(SpecError, match="num_attention_heads=9 is no multiple of 2"):
            tensor_parallel(2, config)
    tensor_parallel(3, sizes)


def test_a_device_map_changes_no_token(tiny_llama: Callable[..., Path]) -> None:
    words = (*HF, f"model.path={tiny_llama()}", "quantization=fp32")
    one = generated(*words, "backend.decoder=generate")
    other = generated(*words, "backend.device_map=auto")
    assert other.token_ids == one.token_ids and other.entropies == one.entropies


def generated(*words: str) -> Generation:
    setup = api.compose(*words, "sampling.temperature=1")
    prompt = Prompt((Message("user", ("Hello",)),))
    request = Request(prompt, (), 12, setup.spec.sampling, 1, 0, Group("a", 0, 1))

    async def ask() -> Generation:
        async with api.open_backend(setup) as backend:
            return await backend.generate(request)

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Place()),
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, Place(3, 8, 1)),
        ({"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "0"}, Place(2, 4, 0)),
        # The batch script of a job of four tasks, and of one that says no number.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}, Place()),
        ({"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}, Place()),
        (
            {
                "SLURM_PROCID": "2",
                "SLURM_STEP_NUM_TASKS": "4",
                "SLURM_LOCALID": "1",
                "CUDA_VISIBLE_DEVICES": "3",
            },
            Place(2, 4, 0),
        ),
        ({"RANK": "0", "WORLD_SIZE": "1", "SLURM_PROCID": "2"}, Place(0, 1, 0)),
    ],
)
def test_the_launcher_says_which_rank_this_is(
    environment: Mapping[str, str], expected: Place
) -> None:
    assert place(environment) == expected


def test_a_launchers_variables_that_make_no_sense_are_named() -> None:
    with pytest.raises(SpecError, match="RANK, WORLD_SIZE, LOCAL_RANK must be whole numbers"):
        place({"RANK": "first", "WORLD_SIZE": "2"})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"bf16": {"enabled": True}},
            "backend.config.bf16 must be left out; it follows from quant",
        ),
        ({"optimizer": {}}, "backend.config.optimizer must be left out"),
        ({"zero_optimisation": {}}, "backend.config.zero_optimisation must be one of zero_optim"),
        ({"zero_optimization": {"stage": 2}}, "stage must be 3"),
        ({"zero_optimization": {"offload_optimizer": {}}}, "there is no optimizer"),
        ({"zero_optimization": {"offload_param": {"device": "disk"}}}, "device must be one of"),
        ({"zero_optimization": {"offload_param": {"device": "nvme"}}}, "nvme_path must name"),
        ("nowhere.json", "backend.config must be a mapping, or name a JSON file"),
    ],
)
def test_deepspeeds_configuration_is_checked(given: Any, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        settings_of(given)
    assert said in str(caught.value)


def test_the_file_that_trained_a_model_can_serve_it(tmp_path: Path) -> None:
    file = tmp_path / "zero3.json"
    offload = {"device": "cpu"}
    content = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW"},
        "zero_optimization": {"stage": 3, "offload_param": offload, "offload_optimizer": offload},
    }
    file.write_text("// of the training\n" + json.dumps(content, indent=1))
    settings = settings_of(str(file))
    assert settings == {"zero_optimization": {"stage": 3, "offload_param": offload}}
    whole = engine_settings(settings, "float16")
    assert whole["fp16"] == {"enabled": True} and whole["bf16"] == {"enabled": False}
