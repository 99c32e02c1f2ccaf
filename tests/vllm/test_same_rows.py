"""vLLM draws what `backend=hf` draws, and measures what it measures. Run by `make test-vllm`."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from components.backends.hf.backend import HfBackend
from components.backends.vllm_engine import second_runner_processor
from components.backends.vllm_engine.arguments import refuse_unknown
from components.backends.vllm_engine.measured import DRAWABLE, EXTRA, MEASURED
from components.quantization.precision import Precision
from pipeline.protocols import Backend, ForcedTokens, Generation, Group, Message, Prompt, Request
from pipeline.spec import ModelSpec, Sampling, SpecError
from tests.conftest import SMOLLM2
from tests.fakes.entered import Entered

QUESTIONS = [
    f"{ask} {thing}"
    for ask in ("Explain in one sentence", "Name three kinds of", "Why do people like", "Draw")
    for thing in ("gravity", "birds", "music", "2 + 3", "café ☕ 日本")
]
CUE = "\nWait, let me reconsider. "
NEAR = 1e-3  # of two logits that may change places, and of entropies in nats
GREEDY = Sampling(temperature=0.0, top_p=1.0)


@pytest.fixture(scope="module")
def engine(shared_vllm: Callable[[], Entered]) -> Entered:
    return shared_vllm()


@pytest.fixture(scope="module")
def reference() -> Iterator[Entered]:
    spec = ModelSpec(name="smollm2", path=SMOLLM2)
    entered = Entered(HfBackend(spec, Precision("float32"), device="cpu", slots=8))
    yield entered
    entered.close()


def asked(number: int, prefill: tuple[Any, ...] = (), **fields: Any) -> Request:
    prompt = Prompt((Message("user", (QUESTIONS[number],)),), prefill)
    how = {"stop": (), "cap": 24, "sampling": GREEDY, **fields}
    return Request(prompt, seed=number, trace_id=number, group=Group(str(number), 0, 1), **how)


async def two_passes(backend: Backend) -> list[tuple[Generation, Generation]]:
    async def one(number: int) -> tuple[Generation, Generation]:
        first = await backend.generate(asked(number))
        return first, await backend.generate(asked(number, (first, CUE), cap=16))

    return await asyncio.gather(*map(one, range(len(QUESTIONS))))


def margins(reference: Entered, made: Generation) -> list[float]:
    """How far apart the reference's two largest logits are before each id of `made`."""
    gaps: list[float] = []

    def visit(row: int, index: int, logits: torch.Tensor) -> None:
        top = logits.topk(2).values
        gaps.extend((top[:, 0] - top[:, 1]).tolist())

    rows = [ForcedTokens(made.prompt_ids or (), made.token_ids)]
    reference.run(lambda backend: backend.read_logits(rows, visit))  # type: ignore[attr-defined]
    return gaps


def test_ids_of_both_passes_are_equal_and_entropies_are_those_of_the_reference(
    engine: Entered, reference: Entered
) -> None:
    ours, theirs = engine.run(two_passes), reference.run(two_passes)
    compared = 0
    for of_vllm, of_hf in zip(ours, theirs, strict=True):
        for made, expected in zip(of_vllm, of_hf, strict=True):
            if made.prompt_ids != expected.prompt_ids:
                break  # pass 1 had split at a tie
            pairs = zip(made.token_ids, expected.token_ids, strict=False)
            split = next((n for n, (a, b) in enumerate(pairs) if a != b), None)
            if split is not None:
                assert margins(reference, made)[split] < NEAR
                break
            assert made.token_ids == expected.token_ids
            assert (made.text, made.finish_reason) == (expected.text, expected.finish_reason)
            compared += 1
    assert compared > len(QUESTIONS)
    rows = [made for pair in ours for made in pair]
    forced = [ForcedTokens(made.prompt_ids or (), made.token_ids) for made in rows]
    for made, scores in zip(
        rows, reference.run(lambda backend: backend.score(forced)), strict=True
    ):
        assert made.entropies == pytest.approx(scores.entropies, abs=NEAR)
        assert made.logprobs == pytest.approx(scores.logprobs, abs=NEAR)
        assert made.backend_columns == {"entropy_by": "vllm"}


def test_a_stop_string_ends_the_same_text(engine: Entered, reference: Entered) -> None:
    free = reference.run(lambda backend: backend.generate(asked(0)))
    stop = free.text[len(free.text) // 2 :][:4]
    stopped = [
        entered.run(lambda backend: backend.generate(asked(0, stop=(stop,))))
        for entered in (engine, reference)
    ]
    assert stopped[0].finish_reason == "stop_token" and stopped[0].tail.startswith(stop)
    assert [(s.text, s.tail, s.token_ids) for s in stopped[:1]] == [
        (s.text, s.tail, s.token_ids) for s in stopped[1:]
    ]


def test_entropies_are_raw_whatever_is_sampled_and_left_out_where_nobody_asks(
    engine: Entered, reference: Entered
) -> None:
    sampling = Sampling(temperature=1.3, top_p=0.8, top_k=20, min_p=0.05, repetition_penalty=1.2)
    request = asked(1, sampling=sampling)
    drawn = engine.run(lambda backend: backend.generate(request))
    rows = [ForcedTokens(drawn.prompt_ids or (), drawn.token_ids)]
    (scores,) = reference.run(lambda backend: backend.score(rows))
    assert drawn.entropies == pytest.approx(scores.entropies, abs=NEAR)
    silent = engine.run(lambda backend: backend.generate(asked(1, entropy=False)))
    assert silent.entropies is None and silent.backend_columns == {}


def test_an_argument_that_vllm_does_not_have_is_refused_with_the_nearest() -> None:
    with pytest.raises(SpecError, match="tensor_paralel_size must be .* tensor_parallel_size"):
        refuse_unknown({"tensor_paralel_size": 2})


class Context:
    """The newer runner's step: of two requests one is still reading its prompt."""

    def __init__(self, slots: list[int], lengths: list[int]) -> None:
        self.idx_mapping_np = torch.tensor(slots).numpy()
        self.seq_lens_upper_bound_np = torch.tensor(lengths).numpy()


def test_the_processor_of_the_newer_runner_measures_by_slot_and_position() -> None:
    config = type("Config", (), {"additional_config": {DRAWABLE: 4}})
    processor = second_runner_processor.EntropyProcessor(config, None)
    for slot, key in ((5, [901, 3]), (2, [902, 8])):
        processor.add_request(slot, type("Params", (), {"extra_args": {EXTRA: key}}))
    even = torch.zeros(2, 6)
    assert processor.apply(even.clone(), Context([5, 2], [3, 4])).isinf().sum() == 4
    processor.apply(even.clone(), Context([2, 5], [8, 4]))
    ln6 = pytest.approx(torch.tensor(6.0).log().item())
    assert MEASURED.take([901, 902]) == [[ln6, ln6], [ln6]]
    processor.add_request(5, type("Params", (), {"extra_args": None}))  # the slot's next request
    processor.apply(even.clone(), Context([5], [9]))
    assert MEASURED.take([901]) == [[]]
