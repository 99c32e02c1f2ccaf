"""The decoder of slots on a CUDA device: exact in float32, close in half precision."""

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from components.backends.hf.slots.attention import DecodeFrame
from components.backends.hf.slots.kv_cache import KVCache, LayerShape
from pipeline.protocols import (
    ForcedTokens,
    Generation,
    Group,
    Message,
    Prompt,
    Request,
    TokenScores,
)
from pipeline.spec import Sampling
from tests.fakes.slots import (
    MIXED,
    as_near_to_float64,
    backend,
    decode,
    forward_entropies,
    requests,
    same,
)
from tests.fakes.tiny_models import tiny

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

KINDS = ("llama", "qwen2", "mistral", "gemma")


@pytest.fixture(scope="module")
def models(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def model(kind: str) -> Path:
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            made[kind] = tiny(kind, smollm2, folder, initializer_range=0.3)
        return made[kind]

    return model


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("slots", [6, 64])
def test_float32_rows_equal_those_of_generate(
    kind: str, slots: int, models: Callable[[str], Path]
) -> None:
    asked = requests(6, MIXED, samples=2)
    ours = decode(backend(models(kind), decoder="slots", slots=slots, device="cuda"), asked)
    theirs = decode(backend(models(kind), decoder="generate", device="cuda"), asked)
    for left, right in zip(ours, theirs, strict=True):
        same(left, right)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("slots", "pages"), [(48, None), (10, 17)])
def test_half_precision_is_as_near_to_float64_as_the_models_own_forward(
    kind: str, dtype: str, slots: int, pages: int | None, models: Callable[[str], Path]
) -> None:
    settings = {"slots": slots, "device": "cuda", "compile": pages is None}
    made = backend(models(kind), dtype=dtype, decoder="slots", **settings)
    made.options = dataclasses.replace(made.options, pages=pages)
    about: dict[str, Any] = {}
    asked = requests(12, MIXED, samples=4, caps=(20, 90))
    rows = decode(made, asked, lambda b: about.update(b.describe()))
    assert (about["evictions"] > 0) == (pages is not None)
    own = AutoModelForCausalLM.from_pretrained(models(kind), dtype=getattr(torch, dtype))
    exact = AutoModelForCausalLM.from_pretrained(models(kind), dtype=getattr(torch, dtype))
    own, exact = own.to("cuda"), exact.double().to("cuda")
    as_near_to_float64(rows, own, exact)


def test_a_slot_that_its_row_has_left_writes_into_pages_of_nobody(
    models: Callable[[str], Path],
) -> None:
    folder = models("llama")

    def ask(trace: int, cap: int, *said: Generation) -> Request:
        prompt = Prompt((Message("user", (f"the red bird {trace}",)),), said)
        sampling = Sampling(temperature=1.0)
        return Request(prompt, (), cap, sampling, trace, trace, Group(f"p{trace}", 0, 1))

    async def run() -> Generation:
        async with backend(
            folder, dtype="float16", decoder="slots", slots=4, device="cuda"
        ) as made:
            long = [asyncio.create_task(made.generate(ask(n, 400))) for n in range(3)]
            short = await made.generate(ask(3, 100))
            await asyncio.gather(*long)  # for 300 steps the fourth slot has no row
            before = made.describe()["reused_tokens"]
            again = await made.generate(ask(3, 20, short))
            assert made.describe()["reused_tokens"] - before > 100
            return again

    row = asyncio.run(run())
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16).to("cuda")
    ours = torch.tensor(row.entropies, dtype=torch.float64)
    assert (ours - forward_entropies(model, row)).abs().max() < 0.05


@pytest.mark.parametrize(
    ("heads", "shared", "size"), [(12, 2, 128), (32, 8, 128), (9, 3, 64), (4, 4, 80), (4, 2, 8)]
)
@pytest.mark.parametrize("rows", [2, 40, 300])
@pytest.mark.parametrize(
    ("dtype", "cached", "error"),
    [
        (torch.float16, torch.float16, 4e-3),
        (torch.float16, torch.float8_e4m3fn, 4e-3),
        (torch.bfloat16, torch.float8_e4m3fn, 3e-2),  # of the results' rounding
    ],
)
def test_the_decoding_kernel_is_attention_over_pages(
    heads: int, shared: int, size: int, rows: int, dtype: torch.dtype, cached: torch.dtype,
    error: float,
) -> None:  # fmt: skip
    from components.backends.hf.slots.cuda_attention import PagedDecode

    torch.manual_seed(rows)
    device, page = torch.device("cuda"), 64
    lengths = sorted(torch.randint(1, 700, (rows,)).tolist())  # those of one page come first
    shape = LayerShape(shared, size, size, cached)
    tables, used = [], 0
    for length in lengths:
        count = -(-length // page)
        tables.append([used + n for n in range(count)][::-1])
        used += count
    cache, exact = (KVCache([shape], used + 1, page, device) for _ in range(2))
    for mine, theirs in ((cache.keys, exact.keys), (cache.values, exact.values)):
        mine[0].copy_(torch.randn(mine[0].shape, device=device))
        theirs[0].copy_(mine[0])
    query = torch.randn(1, heads, rows, size, dtype=dtype, device=device)
    key, value = torch.randn(2, 1, shared, rows, size, dtype=dtype, device=device)
    expected = DecodeFrame(exact, tables, lengths, device, dtype).attend(0, query, key, value, 0.1)
    table = torch.full((rows, 12), used, dtype=torch.int32, device=device)
    for row, pages in enumerate(tables):
        table[row, : len(pages)] = torch.tensor(pages, dtype=torch.int32)
    positions = torch.tensor(lengths, device=device) - 1
    order = torch.randperm(rows, device=device).to(torch.int32)
    found = PagedDecode(cache, table, positions, order).attend(0, query, key, value, 0.1)
    assert torch.equal(cache.keys[0].view(torch.uint8), exact.keys[0].view(torch.uint8))
    assert torch.allclose(found.float(), expected.float(), atol=error)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "mean"), [("float32", 1e-4), ("bfloat16", 0.1)])
def test_given_ids_are_scored_as_they_were_drawn_while_others_are_drawn(
    kind: str, dtype: str, mean: float, models: Callable[[str], Path]
) -> None:
    asked = requests(6, MIXED)
    made = backend(models(kind), dtype, decoder="slots", slots=6, device="cuda")

    async def work() -> tuple[list[Generation], list[TokenScores]]:
        async with made:
            drawn = await asyncio.gather(*map(made.generate, asked))
            rows = [ForcedTokens(each.prompt_ids or [], each.token_ids) for each in drawn]
            again = [made.generate(each) for each in asked]
            scores, *_ = await asyncio.gather(made.score(rows), *again)
            return drawn, scores

    drawn, scores = asyncio.run(work())
    measured = torch.tensor([value for each in drawn for value in each.entropies or ()])
    scored = torch.tensor([value for each in scores for value in each.entropies])
    assert float((measured - scored).abs().mean()) < mean
