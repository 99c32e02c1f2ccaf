"""What slots compute once, forget, compute again, and survive without."""

import asyncio
import logging
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from components.backends.hf.backend import HfBackend
from components.backends.hf.slots.kv_cache import KVCache, LayerShape, independent
from components.backends.hf.slots.pages import Copy, PageAllocator, PrefixQuery
from components.backends.hf.slots.torch_steps import TorchSteps
from pipeline.protocols import Generation, Group, Message, Prompt, Request
from pipeline.spec import Sampling
from tests.fakes.slots import MIXED, backend, decode, requests, same
from tests.fakes.tiny_models import tiny

ASKED = requests(4, MIXED, samples=3, caps=(2, 12))


@pytest.fixture(scope="module")
def llama(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("llama", smollm2, tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def expected(llama: Path) -> list[Generation]:
    return decode(backend(llama, decoder="slots", slots=16, share=False), ASKED)


def told(made: HfBackend) -> dict[str, Any]:
    return made.describe()


def test_a_prompt_is_computed_once_for_all_its_samples(llama: Path) -> None:
    asked = requests(3, [Sampling(temperature=1.0)], samples=5, caps=(3, 9))
    about: dict[str, Any] = {}
    rows = decode(backend(llama, decoder="slots", slots=15), asked, lambda b: about.update(told(b)))
    lengths = [rows[number * 5].prompt_tokens for number in range(3)]
    # Two prompts also start alike (the template's first ids), which are computed once for all.
    assert about["prefilled_tokens"] <= sum(lengths)
    # The last id of a shared prompt is computed by the decoding step that its sample joins.
    total = sum(row.prompt_tokens for row in rows)
    assert about["prefilled_tokens"] + about["reused_tokens"] + 12 == total


def test_later_phases_and_cues_compute_only_what_is_new(llama: Path) -> None:
    made, about = backend(llama, decoder="slots", slots=8), {}

    def ask(trace: int, *pieces: Any, cap: int = 8, turns: tuple[Message, ...] = ()) -> Request:
        prompt = Prompt((Message("user", ("tell me of rivers and hills",)), *turns), pieces)
        return Request(prompt, (), cap, Sampling(temperature=1.0), 7, trace, Group("g", 0, 1))

    async def run() -> tuple[Generation, Generation, list[Generation]]:
        async with made:
            think = await made.generate(ask(0, "<think>\n"))
            answer = await made.generate(ask(0, "<think>\n", think, "</think>\n<answer>\n"))
            about["first"] = made.describe()
            said = ("<think>\n", think, "</think>\n<answer>\n", answer, "</answer>")
            turns = (Message("assistant", said), Message("user", ("sure?",)))
            cues = [ask(0, f"<think>\n{word} ", turns=turns) for word in ("wait", "hm", "look")]
            again = list(await asyncio.gather(*map(made.generate, cues)))
            about["second"] = made.describe()
            return think, answer, again

    think, answer, again = asyncio.run(run())
    first, second = about["first"], about["second"]
    new = answer.prompt_tokens - think.prompt_tokens - len(think.token_ids)
    # The last generated id was never computed, so it counts as new.
    assert first["prefilled_tokens"] == think.prompt_tokens + new + 1
    assert first["reused_tokens"] == think.prompt_tokens + len(think.token_ids) - 1
    known = answer.prompt_tokens + len(answer.token_ids) - 1
    new = sum(row.prompt_tokens - known for row in again)
    assert second["prefilled_tokens"] - first["prefilled_tokens"] <= new


@pytest.mark.parametrize("pages", [7, 9, 14])
def test_rows_are_equal_where_memory_is_short(
    pages: int, llama: Path, expected: list[Generation]
) -> None:
    made = backend(llama, decoder="slots", slots=16)
    made.options = replace(made.options, page=16, pages=pages, chunk=24)
    about: dict[str, Any] = {}
    rows = decode(made, ASKED, lambda b: about.update(told(b)))
    for ours, theirs in zip(rows, expected, strict=True):
        same(ours, theirs)
    assert about["evictions"] + about["preemptions"] > 0


def test_a_row_larger_than_the_cache_is_told_what_to_lower(llama: Path) -> None:
    made = backend(llama, decoder="slots", slots=4)
    made.options = replace(made.options, page=16, pages=2)
    with pytest.raises(MemoryError, match="cannot hold a single row of"):
        decode(made, requests(1, MIXED, caps=(60, 60)))


def test_out_of_memory_halves_the_slots_and_loses_nothing(
    llama: Path, expected: list[Generation], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = TorchSteps.decode, [0]

    def short(self: TorchSteps, rows: Any, steps: int) -> Any:
        calls[0] += 1
        if len(rows) > 4 and calls[0] > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, rows, steps)

    monkeypatch.setattr(TorchSteps, "decode", short)
    about: dict[str, Any] = {}
    rows = decode(backend(llama, decoder="slots", slots=16), ASKED, lambda b: about.update(told(b)))
    assert about["slots"] == 4
    first, second = about["out_of_memory"]
    assert first["rows"] >= second["rows"] > 4 and first["tokens"] > 0
    for ours, theirs in zip(rows, expected, strict=True):
        same(ours, theirs)


@pytest.mark.parametrize(
    ("kind", "fields", "reason"),
    [
        ("mistral", {"sliding_window": 16}, "slides over 16"),
        ("gemma2", {"head_dim": 16, "sliding_window": 4096}, "softcap"),
        ("mamba", {}, "attention interface|more state"),
    ],
)
def test_a_model_that_does_not_fit_takes_the_reference_and_the_log_says_why(
    kind: str,
    fields: dict[str, Any],
    reason: str,
    smollm2: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = tiny(kind, smollm2, tmp_path, **fields)
    about: dict[str, Any] = {}
    with caplog.at_level(logging.WARNING):
        rows = decode(
            backend(folder, attention="eager"), ASKED[:2], lambda b: about.update(told(b))
        )
    assert about["decoder"] == "generate" and all(row.token_ids for row in rows)
    assert len([r for r in caplog.records if "does not fit" in r.message]) == 1
    assert any(re.search(reason, r.message) for r in caplog.records)


@pytest.mark.parametrize("seed", range(20))
def test_copies_made_together_are_those_made_one_after_another(seed: int) -> None:
    rng = random.Random(seed)
    cache = KVCache([LayerShape(2, 4, 3, torch.float32)], 8, 6, torch.device("cpu"))
    expected = [tensor[0].normal_().clone() for tensor in (cache.keys, cache.values)]
    filled, copies = [6] * 8, []
    for _ in range(rng.randint(1, 12)):
        source, target = rng.sample(range(8), 2)
        count = rng.randint(1, filled[source])
        filled[target] = count
        copies.append(Copy(source, target, count))
    for copy in copies:
        for tensor in expected:
            tensor[copy.target, :, : copy.count] = tensor[copy.source, :, : copy.count]
    cache.copy(copies)
    for page, count in enumerate(filled):
        for found, tensor in zip((cache.keys[0], cache.values[0]), expected, strict=True):
            assert torch.equal(found[page, :, :count], tensor[page, :, :count])


def test_samples_that_copy_from_each_other_are_copied_at_once() -> None:
    assert len(independent([Copy(page, page + 1, 5) for page in range(30)])) == 1


def test_pages_are_all_given_back() -> None:
    rng = random.Random(0)
    pages, held = PageAllocator(40, 4), []
    for trace in range(400):
        start = [1, 2, 3, 4, 5, 6, 7, 8, 9] * rng.randint(1, 2)
        ids = start + [rng.randint(0, 3) for _ in range(rng.randint(1, 20))]
        allocation = pages.allocate(trace, PrefixQuery.of(ids))
        if allocation is not None:
            allocation.cached.computed = len(allocation.cached.ids)
            held.append(allocation.cached)
        if allocation is None or rng.random() < 0.6:
            one = held.pop(rng.randrange(len(held)))
            pages.retain(one) if rng.random() < 0.5 else pages.free(one)
        if rng.random() < 0.3:
            pages.release(rng.randint(0, trace))
    for one in held:
        pages.free(one)
    for one in list(pages._retained):
        pages.free(one)
    assert pages.num_available == 40 and not pages._by_prefix and not any(pages._ref_counts)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_twenty_thousand_rows_leave_no_memory_behind(llama: Path) -> None:
    made, sizes = backend(llama, decoder="slots", slots=32), []
    asked = requests(200, [Sampling(temperature=1.0)], samples=1, caps=(1, 4))

    async def one(request: Request) -> None:
        await made.generate(request)
        made.release(request.trace_id)

    async def run() -> None:
        async with made:
            for _ in range(100):
                await asyncio.gather(*map(one, asked))
                sizes.append(psutil.Process().memory_info().rss)
            scheduler = made._queue.scheduler  # type: ignore[union-attr]
            assert scheduler.idle

    asyncio.run(run())
    assert max(sizes[50:]) - max(sizes[20:50]) < 8 << 20
