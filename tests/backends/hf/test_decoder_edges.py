"""What goes wrong with one row, or with one step, leaves the other rows as they are."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from components.backends.hf.backend import HfBackend
from components.backends.hf.slots.torch_steps import TorchSteps
from pipeline.protocols import Generation, Group, Message, Prompt, Request
from pipeline.spec import Sampling
from tests.fakes.slots import backend, decode, same
from tests.fakes.tiny_models import tiny


@pytest.fixture(scope="module")
def llama(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("llama", smollm2, tmp_path_factory.mktemp("llama"))


def ask(text: str, trace: int, cap: int, entropy: bool = True) -> Request:
    prompt = Prompt((Message("user", (text,)),))
    group = Group(f"p{trace}", 0, 1)
    return Request(prompt, (), cap, Sampling(temperature=1.0), trace, trace, group, entropy)


def spoil(made: HfBackend, word: str) -> None:
    """No number comes of a text with `word` from now on."""
    [token] = made._encoder().tokenizer.encode(word, add_special_tokens=False)
    embedding: Any = made.model.get_input_embeddings()
    embedding.weight.data = embedding.weight.data.clone()
    embedding.weight.data[token] = torch.nan


def test_rows_that_are_over_in_a_step_that_runs_out_of_memory_are_handed_out(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode_, prefill, over = TorchSteps.decode, TorchSteps.prefill, [0]

    def prefilled(self: TorchSteps, parts: Any) -> Any:
        over[0] += any(active.sequence.request.cap == 1 for active, _ in parts)
        return prefill(self, parts)

    def short(self: TorchSteps, rows: Any, steps: int) -> Any:
        if over[0] == 1:
            over[0] += 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        return decode_(self, rows, steps)

    monkeypatch.setattr(TorchSteps, "prefill", prefilled)
    monkeypatch.setattr(TorchSteps, "decode", short)

    async def run() -> list[Generation]:
        begun = asyncio.Event()
        long = replace(ask("red bird", 0, cap=60), on_token=lambda _: begun.set())
        async with backend(llama, decoder="slots", slots=4) as made:
            first = asyncio.create_task(made.generate(long))
            await begun.wait()
            second = await asyncio.wait_for(made.generate(ask("hill", 1, cap=1)), 30)
            rows = [await first, second]
            assert made.describe()["slots"] == 2, "memory never ran out"
            return rows

    rows = asyncio.run(run())
    assert [len(row.token_ids) for row in rows] == [60, 1]


def test_pages_of_a_row_that_is_not_finite_spoil_no_later_row(llama: Path) -> None:
    later = [ask("day", 10, 5), ask("fine good day to all of you over there and here", 11, 5)]
    expected = decode(backend(llama, decoder="slots", slots=2), later)
    made = backend(llama, decoder="slots", slots=2, share=False)
    made.options = replace(made.options, page=128, pages=4)

    async def run() -> Sequence[Generation]:
        async with made:
            spoil(made, " zebra")
            bad = [ask(" zebra" * 4 + " and so on" * 12, number, 9) for number in range(2)]
            told = await asyncio.gather(*map(made.generate, bad), return_exceptions=True)
            assert all(isinstance(error, FloatingPointError) for error in told)
            return await asyncio.gather(*map(made.generate, later))

    for ours, theirs in zip(asyncio.run(run()), expected, strict=True):
        same(ours, theirs)


@pytest.mark.parametrize("decoder", ["slots", "generate"])
def test_logits_that_are_not_finite_are_told_where_no_entropy_is_wanted(
    decoder: str, llama: Path
) -> None:
    async def run() -> None:
        async with backend(llama, decoder=decoder, slots=1) as made:
            spoil(made, " zebra")
            await made.generate(ask("a zebra", 0, cap=3, entropy=False))

    with pytest.raises(FloatingPointError, match="not finite"):
        asyncio.run(run())


@pytest.mark.parametrize("decoder", ["slots", "generate"])
def test_a_row_at_the_last_position_lets_its_batch_go_on(
    decoder: str, smollm2: Path, tmp_path: Path
) -> None:
    folder = tiny("gpt2", smollm2, tmp_path, max_position_embeddings=96)
    asked = [ask(text, n, cap=300) for n, text in enumerate(("hill " * 30, "a", "red bird"))]
    rows = decode(backend(folder, decoder=decoder, slots=3, batch_size=3), asked)
    assert {row.finish_reason for row in rows} == {"max_context"}
    assert {row.prompt_tokens + len(row.token_ids) for row in rows} == {96}


def test_a_generation_that_its_owner_changes_changes_no_other_row(llama: Path) -> None:
    async def run() -> tuple[Generation, Generation]:
        async with backend(llama, decoder="slots", slots=1) as made:
            first = await made.generate(ask("hello you", 0, cap=2))
            known = replace(first, prompt_ids=list(first.prompt_ids or ()))
            assert first.prompt_ids is not None
            first.prompt_ids.append(5)
            return known, await made.generate(ask("hello you", 1, cap=2))

    known, second = asyncio.run(run())
    assert second.prompt_ids == known.prompt_ids


@pytest.mark.parametrize("decoder", ["slots", "generate"])
def test_whatever_ends_the_decoder_reaches_the_rows_that_waited(llama: Path, decoder: str) -> None:
    async def run() -> list[BaseException]:
        async with backend(llama, decoder=decoder, slots=2, batch_size=2) as made:
            made.model.lm_head = None
            asked = [made.generate(ask("red bird", trace, 4)) for trace in range(5)]
            first = await asyncio.gather(*asked, return_exceptions=True)
            later = await asyncio.gather(made.generate(ask("hill", 9, 4)), return_exceptions=True)
            return [error for error in (*first, *later) if isinstance(error, BaseException)]

    errors = asyncio.run(run())
    assert len(errors) == 6
    assert all("not callable" in str(error) for error in errors)
