"""Every way of sampling on real decoders: beams, penalties, bans, biases and typical sampling."""

import asyncio
import dataclasses
import json
import logging
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from components.backends.hf.backend import HfBackend
from components.backends.hf.beams import BeamSearch
from components.backends.hf.sampling_plan import SamplingPlan
from components.decoding.sequence import Limits, TokenSequence
from pipeline.protocols import FILTERS, STRATEGIES, Generation, Group, Prompt, Request
from pipeline.spec import Sampling, SpecError
from tests.fakes.hf_requests import answers, backend, request
from tests.fakes.slots import same

Maker = Callable[..., Path]
with_both = pytest.mark.parametrize("decoder", ["generate", "slots"])
QUESTION = "Name three rivers in Europe."
ALL: dict[str, Any] = {
    "typical_p": 0.6,
    "presence_penalty": 1.5,
    "frequency_penalty": 0.7,
    "no_repeat_ngram_size": 2,
    "min_new_tokens": 12,
    "repetition_penalty": 1.3,
}


def beams(count: int, size: int | None = None, **fields: Any) -> list[Request]:
    """Requests for the best texts of one prompt."""
    fields = {"temperature": 0.0, "cap": 10, "num_beams": count} | fields
    size = size or count
    made = [request(0, QUESTION, **fields) for _ in range(size)]
    return [
        dataclasses.replace(each, group=Group("q", number, size), trace_id=number)
        for number, each in enumerate(made)
    ]


def theirs(
    folder: Path, rows: list[Generation], ends: list[int], **settings: Any
) -> list[list[int]]:
    """The new ids of Transformers' own beam search for the prompt of `rows`, up to their end."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = torch.tensor([rows[0].prompt_ids])
    out = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        num_return_sequences=len(rows),
        eos_token_id=ends,
        pad_token_id=0,
        **settings,
    )
    texts = out[:, prompt.shape[1] :].tolist()
    places = [[place for place, token in enumerate(text) if token in ends] for text in texts]
    return [text[: 1 + min(found, default=99)] for text, found in zip(texts, places, strict=True)]


@pytest.fixture(scope="module")
def ending(tiny_llama: Maker, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A model whose beams end at different lengths, and the ids that end them."""
    folder = tmp_path_factory.mktemp("ending") / "model"
    shutil.copytree(tiny_llama(), folder)
    best = answers(backend(folder), beams(4))
    ends = [2, best[0].token_ids[2], best[1].token_ids[4], best[3].token_ids[6]]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    return folder, ends


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"length_penalty": 2.0},
        {"length_penalty": -1.0, "early_stopping": True},
        {"early_stopping": "never", "repetition_penalty": 1.5},
        {"no_repeat_ngram_size": 2, "min_new_tokens": 8},
    ],
    ids=lambda fields: " ".join(fields) or "plain",
)
def test_beams_are_those_of_transformers(
    ending: tuple[Path, list[int]], fields: dict[str, Any]
) -> None:
    folder, ends = ending
    rows = answers(backend(folder), beams(4, **fields))
    expected = theirs(folder, rows, ends, num_beams=4, max_new_tokens=10, **fields)
    assert [row.token_ids for row in rows] == expected
    assert len({tuple(ids) for ids in expected}) == 4


def test_beams_differ_in_length_and_its_penalty_chooses(ending: tuple[Path, list[int]]) -> None:
    folder, _ = ending

    async def lengths() -> list[float]:
        async with backend(folder) as made:
            rows = [
                await asyncio.gather(*map(made.generate, beams(4, length_penalty=power)))
                for power in (-3.0, 5.0)
            ]
            return [sum(row.count for row in each) for each in rows]

    short, long = asyncio.run(lengths())
    assert short < long


def test_a_stop_string_ends_a_beam_as_in_transformers(tiny_llama: Maker) -> None:
    folder = tiny_llama()
    short = {"length_penalty": -2.0}
    free = answers(backend(folder), beams(3, **short))
    ends = [0, *(free[0].ends or [])]
    stop = free[0].text[ends[4] : ends[6]]
    rows = answers(backend(folder), beams(3, stop=(stop,), **short))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    given = short | {
        "num_beams": 3,
        "max_new_tokens": 10,
        "stop_strings": [stop],
        "tokenizer": tokenizer,
    }
    found = theirs(folder, rows, [2], **given)
    stopped = [row for row in rows if row.finish_reason == "stop_token"]
    assert stopped and all(row.tail.startswith(stop) for row in stopped)
    assert [row.token_ids for row in rows] == [
        ids[: row.count] for ids, row in zip(found, rows, strict=True)
    ]


def test_a_beams_numbers_are_those_of_the_raw_distribution(tiny_llama: Maker) -> None:
    folder = tiny_llama()
    rows = answers(backend(folder), beams(3, repetition_penalty=1.4, logit_bias={7: 3.0}))
    for row in rows:
        entropies, logprobs = measured(folder, row)
        assert row.entropies == pytest.approx(entropies, abs=1e-4)
        assert row.logprobs == pytest.approx(logprobs, abs=1e-4)


def measured(folder: Path, row: Generation) -> tuple[list[float], list[float]]:
    """Entropies and logprobs of a row's ids, by reading its whole text once."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = row.prompt_ids or []
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + row.token_ids])).logits[0, len(prompt) - 1 : -1]
    logs = logits.double().log_softmax(-1)
    chosen = logs.gather(-1, torch.tensor(row.token_ids)[:, None])[:, 0]
    return (-(logs.exp() * logs).sum(-1)).tolist(), chosen.tolist()


def test_the_beams_of_a_prompt_are_searched_once(
    tiny_llama: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[int] = []
    search = BeamSearch._search

    def counted(self: BeamSearch, sequence: TokenSequence) -> list[list[int]]:
        searches.append(sequence.request.group.index)
        return search(self, sequence)

    monkeypatch.setattr(BeamSearch, "_search", counted)
    rows = answers(backend(tiny_llama(), batch_size=2), beams(5, size=4))
    assert len(searches) == 1 and len({tuple(row.token_ids) for row in rows}) == 4
    totals = [sum(row.logprobs or []) for row in rows]
    assert totals == sorted(totals, reverse=True), "equal lengths: the likeliest text comes first"


def test_a_search_that_was_broken_off_is_begun_anew_for_the_others(
    tiny_llama: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = answers(backend(tiny_llama()), beams(3))
    search = BeamSearch._search

    def broken_off(self: BeamSearch, sequence: TokenSequence) -> list[list[int]]:
        sequence.cancelled = sequence.request.group.index == 0
        return search(self, sequence)

    monkeypatch.setattr(BeamSearch, "_search", broken_off)

    async def scene() -> list[Generation]:
        async with backend(tiny_llama()) as made:
            asked = [asyncio.create_task(made.generate(each)) for each in beams(3)]
            others = await asyncio.gather(*asked[1:])
            asked[0].cancel()
            return others

    assert [row.token_ids for row in asyncio.run(scene())] == [r.token_ids for r in plain[1:]]


def test_a_beam_search_takes_the_reference_decoder_and_the_log_says_so(
    tiny_llama: Maker, caplog: pytest.LogCaptureFixture
) -> None:
    asked = beams(2)
    made = backend(tiny_llama(), decoder="auto")
    made.expect(asked[0].sampling)
    with caplog.at_level(logging.INFO):
        rows = answers(made, asked)
    assert "sampling.num_beams" in caplog.text and len(rows) == 2
    with pytest.raises(SpecError, match=r"backend\.decoder must not be slots"):
        backend(tiny_llama(), decoder="slots").expect(asked[0].sampling)
    with pytest.raises(SpecError, match=r"sampling\.num_beams must be set before"):
        answers(backend(tiny_llama(), decoder="auto"), asked)


def test_both_decoders_draw_the_same_under_every_strategy(tiny_llama: Maker) -> None:
    mixed = [{}, ALL, *({name: value} for name, value in ALL.items())]
    few = {"logit_bias": {2: 8.0, **dict.fromkeys(range(400, 405), 7.0)}, "cap": 14}
    asked = [
        request(n, temperature=t, top_p=0.95, seed=9, **few | fields)
        for t in (0.0, 0.9)
        for n, fields in enumerate(mixed)
    ]
    folder = tiny_llama(initializer_range=0.03)
    rows = [answers(backend(folder, decoder=d), asked) for d in ("generate", "slots")]
    for reference, fast in zip(*rows, strict=True):
        same(reference, fast)
    same(answers(backend(folder, decoder="slots"), asked[-1:])[0], rows[0][-1])
    plain = [
        request(n, temperature=t, top_p=0.95, seed=9, **few)
        for t in (0.0, 0.9)
        for n in range(len(mixed))
    ]
    unchanged = answers(backend(folder), plain)
    changed = [b.token_ids != r.token_ids for b, r in zip(unchanged, rows[0], strict=True)]
    by_strategy = [changed[n] or changed[n + len(mixed)] for n in range(len(mixed))]
    assert by_strategy[:2] == [False, True] and sum(by_strategy[2:]) >= 3, by_strategy
    for row in rows[0]:
        entropies, logprobs = measured(folder, row)
        assert row.entropies == pytest.approx(entropies, abs=1e-4), "raw, whatever was drawn from"
        assert row.logprobs == pytest.approx(logprobs, abs=1e-4)


@with_both
def test_each_strategy_does_what_it_is_for(decoder: str, tiny_llama: Maker) -> None:
    folder = tiny_llama()
    banned, forced = 300, 11
    asked = [
        request(0, cap=24, temperature=0.0, no_repeat_ngram_size=2),
        request(0, cap=24, temperature=0.0, logit_bias={forced: 100.0}),
        request(0, cap=24, temperature=0.0, presence_penalty=2.0, logit_bias={forced: 1.9}),
        request(0, cap=24, temperature=3.0, min_new_tokens=20, logit_bias={2: 100.0}),
        request(0, cap=24, temperature=3.0, logit_bias={2: 100.0}),
        request(0, cap=24, temperature=0.0),
    ]
    grams, biased, _, late, early, greedy = answers(backend(folder, decoder=decoder), asked)
    text = (grams.prompt_ids or []) + grams.token_ids
    pairs = Counter(zip(text, text[1:], strict=False))
    first = len(grams.prompt_ids or []) - 1
    assert all(pairs[pair] == 1 for pair in zip(text[first:], text[first + 1 :], strict=False))
    assert biased.token_ids == [forced] * 24
    assert (early.count, early.finish_reason) == (1, "eos")
    assert (late.count, late.finish_reason) == (21, "eos")
    assert banned not in greedy.token_ids or True


@with_both
def test_frequency_and_presence_penalties_make_a_row_vary(decoder: str, tiny_llama: Maker) -> None:
    bias = {token: 20.0 for token in (400, 401, 402)}
    base = {"cap": 12, "temperature": 0.0, "logit_bias": bias}
    plain, once, often = answers(
        backend(tiny_llama(initializer_range=0.002), decoder=decoder),  # nearly flat
        [
            request(0, **base, **extra)
            for extra in ({}, {"presence_penalty": 1.0}, {"frequency_penalty": 1.0})
        ],
    )
    assert len(set(plain.token_ids)) == 1
    assert len(set(once.token_ids)) == 3
    assert max(Counter(often.token_ids).values()) == 4 and len(set(often.token_ids)) == 3


@with_both
def test_top_k_of_one_is_greedy_and_a_top_k_above_the_vocabulary_is_none(
    decoder: str, tiny_llama: Maker
) -> None:
    cases: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.5, "top_k": 1},
        {"temperature": 1.5},
        {"temperature": 1.5, "top_k": 10**6},
    ]
    asked = [request(n, cap=8, seed=5, **fields) for fields in cases for n in range(2)]
    rows = answers(backend(tiny_llama(), decoder=decoder), asked)
    greedy, first, free, all_of_them = (
        [r.token_ids for r in rows[n : n + 2]] for n in (0, 2, 4, 6)
    )
    assert greedy == first and free == all_of_them and greedy != free


@with_both
def test_low_temperatures_are_conservative_and_high_ones_diverse(
    decoder: str, tiny_llama: Maker
) -> None:
    temperatures = (0.2, 0.7, 1.5)
    asked = [request(n, QUESTION, cap=8, temperature=t) for t in temperatures for n in range(40)]
    rows = answers(backend(tiny_llama(), decoder=decoder, batch_size=40), asked)
    different, surprise = [], []
    for start in range(0, len(rows), 40):
        drawn = rows[start : start + 40]
        different.append(len({token for row in drawn for token in row.token_ids}))
        surprise.append(-sum(sum(row.logprobs or []) for row in drawn) / 320)
    print(different, surprise)
    assert different == sorted(different) and different[2] > 2 * different[0]
    assert surprise == sorted(surprise) and surprise[2] > surprise[0] + 1


@with_both
def test_an_empty_prompt_is_refused_with_a_sentence(decoder: str, tiny_llama: Maker) -> None:
    async def scene() -> tuple[Any, Generation]:
        made = backend(tiny_llama(), decoder=decoder)
        async with made:
            made._encoder()._adds_bos = False  # as a byte-level model
            asked = dataclasses.replace(request(0), prompt=Prompt((), ()))
            (failed,) = await asyncio.gather(made.generate(asked), return_exceptions=True)
            return failed, await made.generate(request(1))

    failed, after = asyncio.run(scene())
    assert isinstance(failed, SpecError) and "hold at least one token" in str(failed)
    assert after.text


def test_a_bias_for_an_id_that_is_not_there_is_refused(tiny_llama: Maker) -> None:
    for fields in ({}, {"num_beams": 2, "temperature": 0.0}):
        with pytest.raises(SpecError, match=r"sampling\.logit_bias must name ids below .* 49152"):
            answers(backend(tiny_llama()), [request(0, logit_bias={49152: 1.0}, **fields)])


def test_hf_honours_every_parameter_of_sampling() -> None:
    always = {"temperature", "num_samples", "think_cap", "answer_cap", "max_new_tokens"}
    assert {*FILTERS, *STRATEGIES, *always} == set(Sampling.__slots__)
    assert set(HfBackend.capabilities.filters) == {*FILTERS, *STRATEGIES}


def test_a_decoder_that_cannot_change_logits_refuses_what_it_was_not_told_of() -> None:
    class Graphs:
        changes_logits = False

    plan: Any = SamplingPlan()
    asked = request(0, typical_p=0.5).sampling, 3, None, Limits(frozenset(), None), 100
    with pytest.raises(SpecError, match=r"sampling\.typical_p must be set before the model is"):
        plan.strategy(*asked, Graphs())
    assert plan.strategy(*asked, None) is not None, "generate takes it"
