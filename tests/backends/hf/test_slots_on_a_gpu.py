"""What slots do beside plain models and filters, on a CUDA device: strategies, memory, adapters."""

import asyncio
import gc
import logging
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from components.backends.hf.backend import HfBackend
from components.backends.hf.slots.carrying import CarryingSteps
from components.backends.hf.slots.kv_cache import FP8, KVCache, LayerShape
from components.backends.hf.slots.pages import Copy
from components.backends.hf.slots.recurrent import RecurrentSteps
from components.backends.hf.slots.torch_steps import TorchSteps
from components.models.adapters import unmerged
from components.models.architectures.bdh import BdhConfig, BdhForCausalLM
from components.models.architectures.byte_tokenizer import byte_tokenizer
from pipeline.protocols import ForcedTokens, Generation, Request, TokenScores
from pipeline.spec import SpecError
from tests.fakes import hf_requests
from tests.fakes.configs import ROOT
from tests.fakes.hf_requests import request
from tests.fakes.memory_models import CHAPTERS, model
from tests.fakes.slots import (
    MIXED,
    as_near_to_float64,
    backend,
    decode,
    forward_entropies,
    requests,
    same,
)
from tests.fakes.tiny_models import random_adapter, tiny

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

DEVICE = "cuda"
ASKED = requests(4, MIXED, samples=2, caps=(4, 20))
# A bias keeps random models to a few ids, so that penalties and bans have something to act on.
FEW: dict[str, Any] = {"logit_bias": {2: 8.0, **dict.fromkeys(range(400, 405), 7.0)}, "cap": 14}
STRATEGIES: list[dict[str, Any]] = [
    {},
    {"typical_p": 0.6},
    {"presence_penalty": 1.5},
    {"frequency_penalty": 0.7},
    {"no_repeat_ngram_size": 2},
    {"min_new_tokens": 12},
    {"repetition_penalty": 1.3},
    {"typical_p": 0.6, "presence_penalty": 1.5, "no_repeat_ngram_size": 2, "min_new_tokens": 12},
]
if find_spec("llguidance") is not None:
    STRATEGIES.append({"regex": "(yes|no)( and (yes|no)){1,3}", "logit_bias": {}})


def few_pages(made: HfBackend) -> HfBackend:
    """With a cache of 16384 tokens, where it would take all of the device's free memory."""
    made.options = replace(made.options, pages=256)
    return made


def slots(folder: Path, dtype: str = "float32", **fields: Any) -> HfBackend:
    """Slots on the device."""
    return few_pages(
        backend(folder, dtype, **{"decoder": "slots", "slots": 8, "device": DEVICE, **fields})
    )


def asking(made: HfBackend, asked: list[Request]) -> HfBackend:
    """A backend that was told of the samplings to come, as a run tells it."""
    for each in asked:
        made.expect(each.sampling)
    return made


def near(ours: Generation, theirs: Generation) -> None:
    """The same ids and end on two processors, with numbers that agree but for rounding."""
    assert (ours.token_ids, ours.finish_reason) == (theirs.token_ids, theirs.finish_reason)
    assert ours.entropies == pytest.approx(theirs.entropies, abs=2e-3)
    assert ours.logprobs == pytest.approx(theirs.logprobs, abs=2e-3)


def measured(row: Generation) -> torch.Tensor:
    return torch.tensor(row.entropies, dtype=torch.float64)


@pytest.fixture(scope="module")
def llama(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    made: dict[str, Path] = {}

    def make(spread: float = 0.3) -> Path:
        if str(spread) not in made:
            folder = tmp_path_factory.mktemp("llama")
            made[str(spread)] = tiny("llama", smollm2, folder, initializer_range=spread)
        return made[str(spread)]

    return make


def test_every_strategy_draws_in_slots_what_generate_and_the_processor_draw(
    llama: Callable[..., Path],
) -> None:
    asked = [
        request(n, **{"temperature": t, "top_p": 0.95, "seed": 9, **FEW, **fields})
        for t in (0.0, 0.9)
        for n, fields in enumerate(STRATEGIES)
    ]
    folder = llama(0.03)
    ours = decode(asking(slots(folder), asked), asked)
    generated = decode(backend(folder, decoder="generate", device=DEVICE), asked)
    processor = decode(backend(folder, decoder="generate"), asked)
    for row, other, exact in zip(ours, generated, processor, strict=True):
        same(row, other)
        near(row, exact)
    plain, *changed = (tuple(row.token_ids) for row in ours[len(STRATEGIES) :])
    assert sum(ids != plain for ids in changed) >= 4, "strategies make a difference"


def test_beams_are_those_that_the_processor_finds(llama: Callable[..., Path]) -> None:
    fields: dict[str, Any] = {"num_beams": 4, "temperature": 0.0, "cap": 10}
    asked = [request(0, **fields, no_repeat_ngram_size=2), request(1, **fields, length_penalty=2.0)]
    folder = llama()
    ours = decode(backend(folder, decoder="generate", device=DEVICE), asked)
    for row, exact in zip(ours, decode(backend(folder, decoder="generate"), asked), strict=True):
        near(row, exact)


def test_graphs_refuse_a_strategy_that_they_were_not_told_of_and_draw_on(
    llama: Callable[..., Path],
) -> None:
    made = slots(llama(), "float16", compile=False)

    async def work() -> tuple[Any, Generation, bool]:
        async with made:
            late = made.generate(request(0, typical_p=0.5))
            refused, row = await asyncio.gather(
                late, made.generate(request(1)), return_exceptions=True
            )
            assert isinstance(row, Generation)
            return refused, row, made.steps.changes_logits

    refused, row, changes = asyncio.run(work())
    assert not changes, "these are graphs"
    assert isinstance(refused, SpecError) and "sampling.typical_p must be set" in str(refused)
    assert row.token_ids


def bdh(place: Path) -> Path:
    sizes = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        made = BdhForCausalLM(
            BdhConfig(**sizes, mlp_internal_dim_multiplier=4, initializer_range=0.4)
        )
    made.save_pretrained(place)
    byte_tokenizer().save_pretrained(place)
    return place


def memory(place: Path, **settings: Any) -> Path:
    made = model(vocabulary=256, **settings)
    made.save_pretrained(place)
    byte_tokenizer().save_pretrained(place)
    return place


def routed(strategy: str, **settings: Any) -> Callable[[Path], Path]:
    how = {"routing_strategy_inference": strategy, "routing_window_size": 7}
    return lambda place: memory(place, **CHAPTERS, **how, **settings)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        pytest.param(bdh, RecurrentSteps, id="bdh"),
        pytest.param(lambda _: ROOT / "examples/models/bdh_tiny", RecurrentSteps, id="bdh_tiny"),
        pytest.param(lambda _: ROOT / "examples/models/mini_llm_tiny", TorchSteps, id="mini_llm"),
        pytest.param(memory, TorchSteps, id="memory"),
        pytest.param(routed("token"), TorchSteps, id="token"),
        pytest.param(routed("sequence"), CarryingSteps, id="sequence"),
        pytest.param(routed("rolling"), CarryingSteps, id="rolling"),
        pytest.param(routed("hybrid", adapter=False), CarryingSteps, id="hybrid"),
        pytest.param(routed("sequence-rolling"), CarryingSteps, id="sequence-rolling"),
    ],
)
def test_models_with_memory_or_a_state_draw_in_slots_what_the_processor_draws_of_each_row_alone(
    make: Callable[[Path], Path], kind: type, tmp_path: Path
) -> None:
    folder, steps = make(tmp_path), list[type]()
    ours = decode(slots(folder, slots=3), ASKED, lambda b: steps.append(type(b.steps)))
    alone = decode(backend(folder, decoder="generate", batch_size=1), ASKED)
    assert steps == [kind] and len({row.text for row in ours}) > 4
    for row, exact in zip(ours, alone, strict=True):
        near(row, exact)


@pytest.mark.parametrize(
    ("make", "graphs"),
    [pytest.param(memory, True, id="memory"), pytest.param(routed("token"), False, id="token")],
)
def test_memory_in_half_precision_is_as_near_to_float64_as_its_own_forward(
    make: Callable[[Path], Path], graphs: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, changes = make(tmp_path), list[bool]()
    rows = decode(slots(folder, "float16"), ASKED, lambda b: changes.append(b.steps.changes_logits))
    assert changes == [not graphs]
    assert ("layers wait for the device" in caplog.text) != graphs
    own, exact = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16).to(DEVICE)
        for _ in range(2)
    )
    as_near_to_float64(rows, own, exact.double(), 1.5 if graphs else 3.0)  # chapters may flip


@pytest.fixture(scope="module")
def adapters(
    llama: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """Two adapters of the same Llama."""
    pytest.importorskip("peft", reason="the extra `lora` is not installed")
    first, second = (random_adapter(llama(), tmp_path_factory.mktemp("adapter"), n) for n in (1, 2))
    return first, second


def test_an_adapter_beside_its_base_draws_in_float32_slots_what_the_processor_draws(
    llama: Callable[..., Path], adapters: tuple[Path, Path]
) -> None:
    def rows(**fields: Any) -> list[Generation]:
        beside = {"adapter": str(adapters[0]), "merge_adapter": False}
        return decode(few_pages(hf_requests.backend(llama(), **beside, **fields)), ASKED)

    ours, exact = rows(decoder="slots", slots=3, device=DEVICE), rows(batch_size=1)
    for row, other in zip(ours, exact, strict=True):
        near(row, other)
    plain = decode(slots(llama()), ASKED)
    assert [row.token_ids for row in plain] != [row.token_ids for row in ours]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_an_adapter_in_compiled_graphs_is_as_near_to_float64_as_its_own_forward(
    dtype: str, llama: Callable[..., Path], adapters: tuple[Path, Path]
) -> None:
    asked = requests(6, MIXED, samples=2, caps=(10, 40))
    place = {"decoder": "slots", "slots": 8, "device": DEVICE}
    beside = {"adapter": str(adapters[0]), "merge_adapter": False}
    made = few_pages(hf_requests.backend(llama(), dtype, **beside, **place))
    seen: list[tuple[bool, bool]] = []

    def look(b: HfBackend) -> None:
        compiled = any(m._compiled_call_impl is not None for m in b.model.modules())
        seen.append((b.steps.changes_logits, compiled))

    rows = decode(made, asked, look)
    assert seen == [(False, True)], "graphs of compiled layers"

    def adapted() -> PreTrainedModel:
        base = AutoModelForCausalLM.from_pretrained(llama(), dtype=getattr(torch, dtype))
        whole: Any = unmerged(base.to(DEVICE), adapters[0])
        return whole.eval()  # type: ignore[no-any-return]

    as_near_to_float64(rows, adapted(), adapted().double())  # type: ignore[no-untyped-call]


def test_scores_read_beside_graphs_are_those_read_alone_and_the_rows_stay_whole(
    llama: Callable[..., Path],
) -> None:
    asked = requests(6, MIXED, caps=(40, 80))
    made = slots(llama(), "float16", compile=False)
    graphs: list[bool] = []

    async def work() -> tuple[list[list[TokenScores]], list[Generation], list[TokenScores]]:
        async with made:
            drawn = await asyncio.gather(*map(made.generate, asked))
            graphs.append(bool(made.steps.graphs))
            given = [ForcedTokens(each.prompt_ids or [], each.token_ids) for each in drawn]
            scores = [await made.score(given)]
            others = [asyncio.create_task(made.generate(each)) for each in asked]
            while not all(task.done() for task in others):
                scores.append(await made.score(given))
            rows = [task.result() for task in others]
            again = [ForcedTokens(each.prompt_ids or [], each.token_ids) for each in rows]
            return scores, rows, await made.score(again)

    (alone, *beside), rows, again = asyncio.run(work())
    assert graphs == [True] and len(beside) > 1
    for scores in beside:
        for one, other in zip(scores, alone, strict=True):
            assert one.entropies == pytest.approx(other.entropies, abs=1e-3)
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-3)
    drawn = torch.cat([measured(row) for row in rows])
    scored = torch.tensor([value for each in again for value in each.entropies])
    assert float((drawn - scored).abs().mean()) < 0.1


def held() -> int:
    """Bytes that tensors take on the device, without what libraries keep to work in."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    return torch.cuda.memory_allocated()


@pytest.mark.parametrize("merge", [True, False], ids=["merged", "beside"])
def test_adapters_over_a_shared_base_draw_as_alone_and_the_device_never_holds_two_bases(
    merge: bool,
    llama: Callable[..., Path],
    adapters: tuple[Path, Path],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def made(adapter: Path) -> HfBackend:
        of = {"adapter": str(adapter), "merge_adapter": merge, "decoder": "slots", "slots": 3}
        return few_pages(hf_requests.backend(llama(), **of, device=DEVICE))

    before, seen = held(), list[int]()

    def look(b: HfBackend) -> None:
        seen.append(held() - before - b.steps.cache.bytes)

    caplog.set_level(logging.INFO)
    alone = [decode(made(adapter), ASKED, look) for adapter in adapters]
    assert "in memory already" not in caplog.text
    first, second = map(made, adapters)
    second.succeed(first)
    shared = []
    for each in (first, second):
        shared.append(decode(each, ASKED, look))
        seen.append(held() - before)
    assert caplog.text.count("the base model is in memory already") == 1
    for rows, others in zip(shared, alone, strict=True):
        for row, other in zip(rows, others, strict=True):
            same(row, other)
    assert [row.token_ids for row in shared[0]] != [row.token_ids for row in shared[1]]
    base = sum(p.nbytes for p in AutoModelForCausalLM.from_pretrained(llama()).parameters())
    *during, with_first, after_first, with_second, after_second = seen
    for size in (*during, with_first, with_second):
        assert base <= size < 1.5 * base, (seen, base)
    assert max(after_first, after_second) < 0.1 * base, (seen, base)


def test_an_8_bit_cache_is_written_copied_read_and_wiped_as_on_the_processor() -> None:
    torch.manual_seed(0)
    key, value = torch.randn(2, 1, 2, 5, 16) * 200  # some beyond the largest of 8 bits
    places = torch.tensor([0, 0, 1, 1, 3]), torch.tensor([0, 1, 0, 3, 2])
    found = []
    for device in (torch.device("cpu"), torch.device(DEVICE)):
        cache = KVCache([LayerShape(2, 16, 16, FP8)], 4, 4, device)
        cache.write(0, *(each.to(device) for each in places), key.to(device), value.to(device))
        cache.copy([Copy(0, 2, 2), Copy(2, 3, 1)])
        cache.wipe([1], 1)
        keys, values = cache.gather(0, torch.tensor([[0, 1], [2, 3]], device=device))
        found.append(torch.cat([keys, values], -1).cpu().float())
    assert torch.equal(*found)
    assert found[0].isfinite().all() and found[0].count_nonzero() > 100


def until_they_differ(one: Generation, other: Generation) -> int:
    """Ids that two rows of one request have in common, and the one after them."""
    pairs = zip(one.token_ids, other.token_ids, strict=False)
    alike = next((n for n, (a, b) in enumerate(pairs) if a != b), None)
    return min(one.count, other.count) if alike is None else alike + 1


def test_strategies_over_an_8_bit_cache_measure_what_graphs_measure_and_keep_their_promises(
    llama: Callable[..., Path],
) -> None:
    folder, cap = llama(0.2), 24
    plain = [request(n, cap=cap, temperature=0.8, seed=n) for n in range(6)]
    banning = [
        request(n, cap=cap, temperature=0.8, seed=n, no_repeat_ngram_size=1, min_new_tokens=cap)
        for n in range(6, 9)
    ]
    seen: list[tuple[bool, Any]] = []

    def look(b: HfBackend) -> None:
        changes = b.steps.changes_logits
        cache = b.steps.cache if changes else b.steps._cache
        seen.append((changes, cache.keys[0].dtype))

    def made(**fields: Any) -> HfBackend:
        return slots(folder, "float16", kv_cache_dtype="fp8", compile=False, **fields)

    graphs = decode(made(), plain, look)
    rows = decode(asking(made(), banning), [*plain, *banning], look)
    assert seen == [(False, FP8), (True, FP8)]
    exact: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16).to(DEVICE)
    pairs = [
        (row, other, until_they_differ(row, other))
        for row, other in zip(rows[:6], graphs, strict=True)
    ]
    apart = torch.cat([measured(row)[:n] - measured(other)[:n] for row, other, n in pairs]).abs()
    moved = torch.cat([measured(row) - forward_entropies(exact, row) for row in rows]).abs()
    assert apart.max() < 0.03 and apart.mean() < 0.5 * moved.mean() < 0.1
    for row in rows[6:]:
        assert row.count == cap == len(set(row.token_ids))
        assert not {*row.token_ids} & {*(row.prompt_ids or [])}
