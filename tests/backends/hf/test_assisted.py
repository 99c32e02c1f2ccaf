"""An assistant model guesses ids: every text and number is what it is without one."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from components.backends.hf.backend import HfBackend
from pipeline.spec import SpecError
from tests.fakes.hf_requests import answers, backend, request
from tests.fakes.slots import same

Maker = Callable[..., Path]
CASES: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.9},
    {"temperature": 0.9, "top_p": 0.9, "top_k": 40, "repetition_penalty": 1.2},
    {"temperature": 0.7, "no_repeat_ngram_size": 2, "presence_penalty": 0.5, "typical_p": 0.9},
]


@pytest.fixture(scope="module")
def assistant(tiny_llama: Maker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model itself with some noise in its weights: it is often right, and often wrong."""
    folder = tmp_path_factory.mktemp("assistant") / "model"
    folder.mkdir()
    for path in tiny_llama().iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    weights = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    for name, weight in weights.items():
        weights[name] = weight + 0.02 * torch.randn(weight.shape, generator=generator)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_guesses_change_no_text_and_save_calls(
    tiny_llama: Maker, assistant: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = [request(n, cap=24, **fields) for n, fields in enumerate(CASES)]
    stop = answers(backend(tiny_llama()), asked[:1])[0]
    ends = stop.ends or []
    asked.append(request(0, cap=24, temperature=0.0, stop=(stop.text[ends[7] : ends[9]],)))
    plain = answers(backend(tiny_llama()), asked)
    calls: list[int] = []
    made = backend(tiny_llama(), decoder="auto", assistant_model=str(assistant))
    load = made._load_model

    def counted() -> Any:
        model = load()
        model.register_forward_pre_hook(lambda *_: calls.append(1))
        return model

    made._load_model = counted  # type: ignore[method-assign]
    with caplog.at_level(logging.INFO):
        assisted = answers(made, asked)
    for one, other in zip(plain, assisted, strict=True):
        same(one, other)
    assert plain[4].finish_reason == "stop_token"
    total = sum(row.count for row in assisted)
    assert len(calls) < 0.8 * total, (len(calls), total)
    assert "backend.assistant_model" in caplog.text


def test_what_an_assistant_cannot_be_or_do_is_refused(tiny_llama: Maker) -> None:
    name = r"backend\.assistant_model must "
    with pytest.raises(SpecError, match=name + "be null with backend.decoder=slots"):
        backend(tiny_llama(), decoder="slots", assistant_model="x")
    with pytest.raises(SpecError, match=name + "be null with backend.use_cache=false"):
        backend(tiny_llama(), use_cache=False, assistant_model="x")
    other = tiny_llama(vocab_size=49_200)
    with pytest.raises(SpecError, match=name + "have logits for 49152 ids"):
        answers(backend(tiny_llama(), assistant_model=str(other)), [request(0)])
    made: HfBackend = backend(tiny_llama(), assistant_model=str(tiny_llama()))
    with pytest.raises(SpecError, match=r"sampling\.regex must be null with an assistant"):
        made.expect(request(0, regex="a").sampling)
