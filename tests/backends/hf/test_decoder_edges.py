"""What goes wrong with one row, or with one step, leaves the other rows as they are."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from components.backends.hf.backend import HfBackend
from components.backends.hf.slots.torch_steps import TorchSteps
from pipeline.protocols import Generation, Group, Message, Prompt, Request
from pipeline.spec import Sampling, SpecError
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


TOO_COMPLEX = "x(.{0,200}[a-k].{0,200}b){2,200}"  # llguidance gives up after some 150 bytes of it
DECODERS = ["slots", "generate"]


def beside(made: HfBackend, bad: Request, good: Sequence[Request]) -> tuple[Any, list[Generation]]:
    """What becomes of `bad`, and the rows that are in the decoder with it."""

    async def run() -> list[Any]:
        async with made:
            asked = [good[0], bad, *good[1:]]
            return await asyncio.gather(*map(made.generate, asked), return_exceptions=True)

    told = asyncio.run(run())
    rows = [row for row in told if isinstance(row, Generation)]
    assert [len(row.token_ids) for row in rows] == [each.cap for each in good], "all others ended"
    return told[1], rows


def checked(folder: Path, decoder: str, bad: Request) -> BaseException:
    """The error of `bad`, where the rows beside it are what they are without it."""
    good = [ask("red bird", 1, cap=190), ask("a hill", 2, cap=20)]
    sizes = {"slots": 3, "batch_size": 3}
    failed, rows = beside(backend(folder, decoder=decoder, **sizes), bad, good)
    expected = decode(backend(folder, decoder=decoder, **sizes), good)
    for row, alone in zip(rows, expected, strict=True):
        assert row.token_ids == alone.token_ids
    assert isinstance(failed, BaseException)
    return failed


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_format_that_becomes_too_complex_fails_its_row_alone(decoder: str, llama: Path) -> None:
    bad = ask("hello", 0, cap=900)
    bad = replace(bad, sampling=Sampling(temperature=1.0, regex=TOO_COMPLEX))
    failed = checked(llama, decoder, bad)
    assert isinstance(failed, SpecError)
    assert re.match(
        r"sampling\.regex must be one that llguidance can follow to its end \(after \d+ tokens of "
        r"this answer: lexer error: .*\), got 'x",
        str(failed),
    )


@pytest.mark.parametrize("decoder", DECODERS)
def test_settings_that_bar_every_id_fail_their_row_alone(decoder: str, llama: Path) -> None:
    sampling = Sampling(temperature=1.0, regex="(ab)+", no_repeat_ngram_size=1)
    failed = checked(llama, decoder, replace(ask("hello", 0, cap=9), sampling=sampling))
    said = r"sampling\.no_repeat_ngram_size and sampling\.regex must leave an id to draw"
    assert isinstance(failed, SpecError) and re.match(said, str(failed))


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_listener_that_raises_fails_its_row_alone_and_hears_no_more(
    decoder: str, llama: Path
) -> None:
    heard: list[str] = []

    def broken(text: str) -> None:
        heard.append(text)
        raise BrokenPipeError("nobody reads")

    failed = checked(llama, decoder, replace(ask("hello", 0, cap=90), on_token=broken))
    assert isinstance(failed, BrokenPipeError) and len(heard) == 1


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_row_that_is_not_finite_fails_alone(decoder: str, llama: Path) -> None:
    good = [ask("red bird", 1, cap=40), ask("a hill", 2, cap=20)]
    alone = decode(backend(llama, decoder=decoder), good)
    made = backend(llama, decoder=decoder, slots=3, batch_size=3)

    async def run() -> list[Any]:
        async with made:
            spoil(made, " zebra")
            asked = [good[0], ask("a zebra", 0, cap=30), good[1]]
            return await asyncio.gather(*map(made.generate, asked), return_exceptions=True)

    first, failed, last = asyncio.run(run())
    assert isinstance(failed, FloatingPointError)
    assert [first.token_ids, last.token_ids] == [row.token_ids for row in alone]


def test_a_row_that_fails_where_rows_are_guessed_or_searched_fails_alone(llama: Path) -> None:
    good = [ask("red bird", 1, cap=9), ask("a hill", 2, cap=9)]
    barred = Sampling(temperature=1.0, regex="(ab)+", no_repeat_ngram_size=1)
    guessing = backend(llama, decoder="generate", assistant_model=str(llama), batch_size=3)
    failed, _ = beside(guessing, replace(ask("hello", 0, cap=9), sampling=barred), good)
    assert isinstance(failed, SpecError)
    searched = Sampling(temperature=0.0, num_beams=2)
    beyond = replace(ask("hello", 0, cap=3), sampling=searched, group=Group("p0", 7, 8))
    searching = backend(llama, decoder="generate", batch_size=3)
    failed, _ = beside(searching, beyond, [replace(each, sampling=searched) for each in good])
    assert isinstance(failed, ValueError) and "lower sampling.num_samples" in str(failed)
