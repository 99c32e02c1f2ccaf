"""What `backend=vllm` decides without vLLM; tests/vllm has the rest (make test-vllm)."""

import asyncio
import importlib.util
from collections.abc import Sequence

import pytest
import torch

from components.backends.vllm_engine import arguments
from components.backends.vllm_engine.measured import Measured, bar
from components.backends.vllm_engine.requests import changes_before_measuring, sampling_fields
from components.backends.vllm_engine.together import Together
from launch import api
from launch.config.setup import setup_of
from pipeline.protocols import Backend
from pipeline.run.point import refuse_what_it_cannot
from pipeline.spec import Sampling, SpecError
from tests.fakes.configs import composed

WORDS = ("task=crossword", "backend=vllm")


def opened(*words: str) -> Backend:
    return api.open_backend(setup_of(composed(*WORDS, *words), words))


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_a_run_is_told_how_to_install_it() -> None:
    with pytest.raises(SpecError, match="pip install vllm"):
        opened()


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("+backend.engine.dtype=float16", ["backend.engine.dtype", "quantization"]),
        ("+backend.engine.seed=1", ["backend.engine.seed", "run.seed"]),
        ("+backend.engine.data_parallel_backend=ray", ["data_parallel_backend", "run.shards"]),
        ("quantization=bnb_nf4", ["quantization must be", "backend.engine.quantization"]),
        ("model.attn_implementation=eager", ["model.attn_implementation", "attention_backend"]),
        ("model.routing=token", ["model.routing"]),
        ("backend.entropy_by=both", ["backend.entropy_by", "both"]),
        ("backend.score_device=gpu7", ["backend.score_device", "gpu7"]),
    ],
)
def test_a_key_that_vllm_would_ignore_is_refused_by_name(word: str, names: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        opened(word)
    assert all(name in str(caught.value) for name in names), caught.value


def test_a_copy_in_full_precision_does_not_score_what_vllm_quantizes() -> None:
    with pytest.raises(SpecError, match="backend.entropy_by must be engine"):
        opened("backend.engine.quantization=fp8", "backend.entropy_by=score")


def test_only_options_that_change_rows_are_part_of_what_a_row_is() -> None:
    options = {"tensor_parallel_size": 2, "quantization": "fp8", "max_model_len": 99}
    changing = {"backend.engine.max_model_len": 99, "backend.engine.quantization": "fp8"}
    assert arguments.row_changing(options) == changing


def test_a_sampling_is_handed_on_whole_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr("components.backends.vllm_engine.backend.refuse_unknown", lambda _: None)
    spec = setup_of(composed(*WORDS, "sampling.temperature=0.005"), ()).spec
    with pytest.raises(SpecError, match="sampling.temperature must be 0 or at least 0.01"):
        refuse_what_it_cannot(spec, opened())
    spec = setup_of(composed(*WORDS, "sampling.no_repeat_ngram_size=3"), ()).spec
    with pytest.raises(SpecError, match="sampling.no_repeat_ngram_size must be 0"):
        refuse_what_it_cannot(spec, opened())
    fields = sampling_fields(Sampling(temperature=0.5, min_new_tokens=9), {7, 2}, 5, (1 << 64) - 1)
    assert fields["seed"] == (1 << 63) - 1 and fields["stop_token_ids"] == [2, 7]
    assert fields["max_tokens"] == fields["min_tokens"] == 5


def test_what_is_measured_is_raw_or_not_measured() -> None:
    biased = Sampling(logit_bias={3: 1.0}, repetition_penalty=1.1)
    assert changes_before_measuring(biased, second_runner=False) == ["sampling.logit_bias"]
    assert len(changes_before_measuring(biased, second_runner=True)) == 2
    assert changes_before_measuring(Sampling(temperature=0.3, top_k=4), True) == []


def test_the_last_measure_of_an_index_counts_and_a_fetched_request_is_forgotten() -> None:
    measured = Measured()
    measured.put([(1, 0), (2, 4)], torch.tensor([9.0, 2.0]))  # 1 is still reading its prompt
    measured.put([(1, 0)], torch.tensor([1.0]))
    measured.put([(1, 1)], torch.tensor([0.5]))
    assert measured.take([1]) == [[1.0, 0.5]]
    measured.put([(1, 2)], torch.tensor([3.0]))  # a step more than was needed
    assert measured.take([2, 1]) == [[None, None, None, None, 2.0], []]


def test_ids_that_the_tokenizer_lacks_are_barred() -> None:
    logits = bar(torch.zeros(2, 5), 3)
    assert logits.isinf().sum(dim=-1).tolist() == [2, 2] and not logits[:, :3].isinf().any()


def test_what_waits_is_asked_together_and_an_error_reaches_whoever_was_part_of_it() -> None:
    calls: list[Sequence[int]] = []

    async def work(numbers: Sequence[int]) -> list[int]:
        calls.append(list(numbers))
        await asyncio.sleep(0)
        if 13 in numbers:
            raise ValueError("thirteen")
        return [number * 2 for number in numbers]

    async def ask() -> list[int | BaseException]:
        together = Together(work, most=3)
        asked = [together.ask(number) for number in (1, 2, 3, 13)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        again = [await together.ask(4)]
        await together.close()
        return [*answers, *again]

    first, second, third, failed, last = asyncio.run(ask())
    assert [first, second, third, last] == [2, 4, 6, 8] and isinstance(failed, ValueError)
    assert calls == [[1, 2, 3], [13], [4]]
