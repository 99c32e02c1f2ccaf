"""Memory models whose routers see a row's earlier tokens join and leave slots as others do."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from components.backends.hf.backend import HfBackend
from components.models.architectures.byte_tokenizer import byte_tokenizer
from pipeline.protocols import Generation, Message, Prompt, TokenScores
from tests.fakes.memory_models import CHAPTERS, model
from tests.fakes.slots import MIXED, backend, decode, requests, same

ASKED = requests(4, MIXED, samples=2, caps=(1, 20))


def folder_of(place: Path, strategy: str, adapter: bool = True) -> Path:
    routing = {"routing_strategy_inference": strategy, "routing_window_size": 7}
    made = model(adapter=adapter, vocabulary=256, **CHAPTERS, **routing)
    made.save_pretrained(place)
    byte_tokenizer().save_pretrained(place)
    return place


@pytest.mark.parametrize(
    ("strategy", "adapter"),
    [("rolling", True), ("hybrid", False), ("sequence-rolling", True)],
)
def test_rows_are_what_generate_makes_of_each_alone_whatever_joins_and_leaves(
    tmp_path: Path, strategy: str, adapter: bool
) -> None:
    folder = folder_of(tmp_path, strategy, adapter)
    expected = decode(backend(folder, decoder="generate", batch_size=1), ASKED)
    assert len({row.text for row in expected}) > 4
    longest = max(row.prompt_tokens + len(row.token_ids) for row in expected)
    for slots, page, pages in ((4, None, None), (8, 2, longest // 2 + 2)):
        made = backend(folder, slots=slots)
        made.options = replace(made.options, page=page, pages=pages)
        about: dict[str, Any] = {}
        rows = decode(made, ASKED, lambda b, into=about: into.update(b.describe()))
        assert about["decoder"] == "slots" and about["reused_tokens"] == 0
        assert about["peak_sequences"] > 1
        assert not pages or about["preemptions"], "a row that lost its pages is what it was"
        for ours, theirs in zip(rows, expected, strict=True):
            same(ours, theirs)


def test_a_second_pass_is_routed_anew_as_generate_does(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "hybrid")
    first = replace(ASKED[3], cap=20, stop=())
    (row,) = decode(backend(folder, decoder="generate"), [first])
    said = (*first.prompt.messages, Message("assistant", (row,)), Message("user", ("Why?",)))
    again = replace(first, prompt=Prompt(said))
    (reference,) = decode(backend(folder, decoder="generate"), [again])

    async def both(made: HfBackend) -> list[Generation]:
        async with made:
            return [await made.generate(first), await made.generate(again)]

    found = asyncio.run(both(backend(folder, slots=2)))
    same(found[0], row)
    same(found[1], reference)


def test_given_ids_are_scored_as_they_were_drawn_while_others_decode(tmp_path: Path) -> None:
    made = backend(folder_of(tmp_path, "hybrid"), slots=3)

    async def work() -> tuple[Generation, TokenScores, list[Generation]]:
        async with made:
            drawn = await made.generate(ASKED[5])
            others = asyncio.gather(*map(made.generate, ASKED[:4]))
            (scores,) = await made.score([made.force(ASKED[5].prompt, drawn)])
            return drawn, scores, await others

    drawn, scores, others = asyncio.run(work())
    assert scores.entropies == pytest.approx(drawn.entropies, abs=1e-4)
    assert scores.logprobs == pytest.approx(drawn.logprobs, abs=1e-4)
    for row, alone in zip(others, decode(made, ASKED[:4]), strict=True):
        same(row, alone)


def test_without_a_cache_the_model_routes_by_sequence_so_it_takes_generate(tmp_path: Path) -> None:
    about: dict[str, Any] = {}
    made = backend(folder_of(tmp_path, "rolling"), use_cache=False)
    decode(made, ASKED[:1], lambda b: about.update(b.describe()))
    assert about["decoder"] == "generate"
