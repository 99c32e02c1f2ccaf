"""Models with a recurrent state join and leave slots as others do."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from components.backends.hf.backend import HfBackend
from components.models.architectures.bdh import BdhConfig, BdhForCausalLM
from pipeline.protocols import Generation, Message, Prompt
from tests.fakes.linear_attention import LinearAttentionConfig, LinearAttentionModel
from tests.fakes.slots import MIXED, backend, decode, requests, same

ASKED = requests(5, MIXED, samples=2, caps=(1, 20))


def save(model: PreTrainedModel, tokenizer: Path, folder: Path) -> Path:
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tokenizer / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def linear(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = LinearAttentionModel(LinearAttentionConfig(initializer_range=0.4))
    return save(model, smollm2, tmp_path_factory.mktemp("linear"))


@pytest.fixture(scope="module")
def expected(linear: Path) -> list[Generation]:
    made = backend(linear, decoder="generate", batch_size=1, use_cache=False)
    return decode(made, ASKED)


@pytest.mark.parametrize(("slots", "chunk", "pages"), [(1, None, None), (4, 5, None), (8, 16, 3)])
def test_slots_hold_states_and_rows_are_what_they_are_alone(
    slots: int, chunk: int | None, pages: int | None, linear: Path, expected: list[Generation]
) -> None:
    made = backend(linear, decoder="slots", slots=slots)
    made.options = replace(made.options, chunk=chunk, pages=pages)
    about: dict[str, Any] = {}
    rows = decode(made, ASKED, lambda b: about.update(b.describe()))
    for ours, theirs in zip(rows, expected, strict=True):
        same(ours, theirs)
    assert about["cache_states"] == (pages or 2 * slots)


def test_a_second_pass_continues_the_state_of_the_first(linear: Path) -> None:
    first = replace(ASKED[3], cap=20, stop=())
    made = backend(linear, decoder="slots", slots=2)
    (row,) = decode(made, [first])
    prompt = first.prompt
    said = Message("assistant", (row,))
    again = replace(first, prompt=Prompt((*prompt.messages, said, Message("user", ("Why?",)))))
    reference = decode(backend(linear, decoder="generate", use_cache=False), [again])[0]
    about: dict[str, Any] = {}

    async def both(made: HfBackend) -> Generation:
        async with made:
            await made.generate(first)
            second = await made.generate(again)
            about.update(made.describe())
            return second

    same(asyncio.run(both(backend(linear, decoder="slots", slots=2))), reference)
    assert about["reused_tokens"] > row.prompt_tokens


def test_bdh_decodes_in_slots_what_generate_decodes_alone(smollm2: Path, tmp_path: Path) -> None:
    config = BdhConfig(
        num_hidden_layers=2,
        hidden_size=32,
        num_attention_heads=2,
        mlp_internal_dim_multiplier=4,
        vocab_size=49152,
        initializer_range=0.4,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        folder = save(BdhForCausalLM(config), smollm2, tmp_path)
    theirs = decode(backend(folder, decoder="generate", batch_size=1), ASKED)
    about: dict[str, Any] = {}
    made = backend(folder, decoder="auto", slots=4)
    ours = decode(made, ASKED, lambda b: about.update(b.describe()))
    assert about["decoder"] == "slots"
    for row, other in zip(ours, theirs, strict=True):
        same(row, other)
