"""Tensor parallel and adapters, which vLLM applies itself. Run by `make test-vllm`."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from launch import api
from launch.config.setup import setup_of
from pipeline.protocols import Generation, Group, Message, Prompt, Request
from pipeline.spec import Sampling
from tests.fakes.configs import composed
from tests.fakes.entered import VLLM, Entered


@contextmanager
def entered(*words: str) -> Iterator[Entered]:
    line = ("task=crossword", *words)
    made = Entered(api.open_backend(setup_of(composed(*line), line)))
    try:
        yield made
    finally:
        made.close()


def said(backend: Entered) -> list[Generation]:
    prompts = [Prompt((Message("user", (f"say {word} twice",)),)) for word in ("red", "blue")]
    sampling = Sampling(temperature=0.0, top_p=1.0)
    requests = [
        Request(prompt, (), 12, sampling, number, number, Group(str(number), 0, 1))
        for number, prompt in enumerate(prompts)
    ]
    return [backend.run(lambda one, r=each: one.generate(r)) for each in requests]


def same(ours: list[Generation], theirs: list[Generation]) -> None:
    for made, expected in zip(ours, theirs, strict=True):
        assert made.token_ids == expected.token_ids
        assert made.entropies == pytest.approx(expected.entropies, abs=1e-3)
        assert made.logprobs == pytest.approx(expected.logprobs, abs=1e-3)
        assert made.backend_columns == {"entropy_by": "vllm"}


HF = ("backend=hf", "backend.device=cpu", "backend.threads=1", "quantization=fp32")


def test_a_layer_spread_over_two_workers_draws_and_measures_the_same(
    tiny_llama: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", f"{cores[0]}|{cores[-1]}")
    shape = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = tiny_llama(head_dim=32, max_position_embeddings=512, **shape)
    local = ("model=local", f"model.path={model}")
    with entered(*VLLM, *local, "backend.engine.tensor_parallel_size=2") as spread:
        ours = said(spread)
    with entered(*HF, *local) as reference:
        same(ours, said(reference))


def test_an_adapter_is_applied_as_it_was_trained(smollm2: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    how = LoraConfig(
        r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], init_lora_weights=False
    )
    get_peft_model(base, how).save_pretrained(tmp_path / "adapter")
    words = (f"model.adapter={tmp_path / 'adapter'}", "model.merge_adapter=false")
    with entered(*VLLM, *words) as adapted:
        ours = said(adapted)
    with entered(*HF, "model=smollm2", *words) as reference:
        same(ours, said(reference))
    with entered(*HF, "model=smollm2") as plain:
        assert [one.token_ids for one in said(plain)] != [one.token_ids for one in ours]
