"""`score`: given ids get the numbers that the decoder measured when it drew them."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from components.backends.hf import scoring
from components.backends.hf.backend import HfBackend
from components.backends.hf.forced_reading import CachedCalls, ForcedSteps
from components.backends.hf.slots.packed_rows import PackedRows, pieces_of
from components.decoding.shared_rows import SharedRows
from components.models.architectures.bdh import BdhConfig, BdhForCausalLM
from components.models.architectures.byte_tokenizer import byte_tokenizer
from pipeline.protocols import ForcedTokens, Generation, TokenScores
from pipeline.spec import SpecError
from tests.backends.hf.test_architectures import memory_adapter
from tests.fakes.configs import ROOT
from tests.fakes.hf_requests import backend, prompt, request
from tests.fakes.tiny_models import tiny

Folder = Callable[[str], Path]
ASKED = [request(number, cap=cap) for number, cap in enumerate((20, 1, 33, 12, 7))]


@pytest.fixture(scope="module")
def folder(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A random model by its kind."""

    def make(kind: str) -> Path:
        place = tmp_path_factory.mktemp(kind)
        if kind.startswith("memory"):
            return Path(memory_adapter(place, kind.removeprefix("memory_")))
        if kind == "mini_llm":
            return ROOT / "examples/models/mini_llm_tiny"
        if kind == "bdh":
            torch.manual_seed(0)
            model = BdhForCausalLM(BdhConfig(n_layer=2, n_embd=32, initializer_range=0.3))
            model.save_pretrained(place)
            byte_tokenizer().save_pretrained(place)
            return place
        fields: dict[str, Any] = {"sliding_window": 16} if kind == "mistral" else {}
        return tiny(kind, smollm2, place, **fields)

    return make


async def drawn_and_scored(
    made: HfBackend, way: list[Any]
) -> tuple[list[Generation], list[TokenScores], list[TokenScores]]:
    """Generations, their scores together, and each alone."""
    async with made:
        drawn = await asyncio.gather(*map(made.generate, ASKED))
        rows = [ForcedTokens(g.prompt_ids or [], g.token_ids) for g in drawn]
        together = await made.score(rows)
        alone = [(await made.score([row]))[0] for row in rows]
        assert made._scorer is not None
        way.append(made._scorer._reader)
        return drawn, together, alone


def close(scores: Sequence[TokenScores], drawn: Sequence[Generation]) -> None:
    for score, generation in zip(scores, drawn, strict=True):
        assert len(score.entropies) == len(generation.token_ids)
        assert score.entropies == pytest.approx(generation.entropies, abs=1e-4)
        assert score.logprobs == pytest.approx(generation.logprobs, abs=1e-4)


@pytest.mark.parametrize(
    ("kind", "decoder", "reader"),
    [
        ("llama", "slots", PackedRows),
        ("llama", "generate", CachedCalls),
        ("mixtral", "slots", PackedRows),
        ("mistral", "auto", CachedCalls),
        ("bdh", "slots", CachedCalls),
        ("bdh", "generate", CachedCalls),
        ("mini_llm", "auto", PackedRows),
        ("memory_token", "auto", PackedRows),
        ("memory_sequence", "auto", ForcedSteps),
        ("memory_rolling", "auto", ForcedSteps),
        ("memory_hybrid", "auto", ForcedSteps),
    ],
)
def test_scores_are_what_the_decoder_measured_whatever_the_company(
    kind: str, decoder: str, reader: type, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabulary = {"mini_llm": 2048, "bdh": 256}.get(kind, 49152)
    vocabulary = 256 if kind.startswith("memory") else vocabulary
    monkeypatch.setattr(scoring, "_LOGITS", 5 * vocabulary)  # so that every row is cut
    way: list[Any] = []
    made = backend(folder(kind), decoder=decoder)
    drawn, together, alone = asyncio.run(drawn_and_scored(made, way))
    assert type(getattr(way[0], "reader", way[0])) is reader
    close(together, drawn)
    close(alone, drawn)


def test_no_call_holds_more_logits_or_ids_than_it_may() -> None:
    rows = [ForcedTokens(range(p), range(n)) for p, n in ((5, 9), (30, 1), (3, 0), (1, 40), (2, 2))]
    calls = pieces_of(rows, 16, 4)
    assert max(sum(p.count for p in call) for call in calls) == 16
    assert max(sum(p.wanted for p in call) for call in calls) == 4
    for number, row in enumerate(rows):
        own = [p for call in calls for p in call if p.row == number]
        assert sum(p.wanted for p in own) == len(row.token_ids)
        assert [p.first for p in own[1:]] == [p.first + p.count for p in own[:-1]]
    assert all(piece.first == 0 for call in calls for piece in call[1:])


def test_rows_that_begin_alike_are_read_once_and_each_gets_its_own_logits() -> None:
    rows = [
        ForcedTokens([1, 2], [3, 4]),
        ForcedTokens([1, 2, 3, 4, 5], [6, 7, 8]),
        ForcedTokens([1, 2], [3, 9]),
        ForcedTokens([1], []),
        ForcedTokens([1, 2], [3, 4]),
    ]
    read: list[list[int]] = []

    class Counting:
        def read(self, rows: Sequence[ForcedTokens], most_logits: int, visit: Any) -> None:
            for number, row in enumerate(rows):
                read.append([*row.prompt_ids, *row.token_ids])
                ids = torch.tensor(list(row.token_ids)).unsqueeze(-1)  # as if logits told the id
                for start in range(0, len(ids), most_logits):
                    visit(number, start, ids[start : start + most_logits])

    got: list[list[int]] = [[] for _ in rows]
    shared = SharedRows(Counting())
    shared.read(rows, 2, lambda row, index, logits: got[row].extend(logits.squeeze(-1).tolist()))
    assert got == [list(row.token_ids) for row in rows]
    assert sorted(map(len, read)) == [4, 8]


def test_memory_that_runs_out_takes_fewer_positions_and_the_numbers_stay(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [ForcedTokens(range(10, 20), range(100, 140))]
    made = backend(folder("llama"), decoder="slots")
    calls: list[int] = []
    real = PackedRows.read

    def short(self: PackedRows, rows: Any, most_logits: int, visit: Any) -> None:
        calls.append(most_logits)
        real(self, rows, min(most_logits, 16), visit)
        if most_logits > 100:
            raise torch.OutOfMemoryError("out of memory")

    async def both() -> list[list[TokenScores]]:
        async with made:
            whole = await made.score(rows)
            monkeypatch.setattr(PackedRows, "read", short)
            return [whole, await made.score(rows)]

    whole, halved = asyncio.run(both())
    assert len(calls) > 1 and calls[-1] <= 100
    assert halved[0].entropies == pytest.approx(whole[0].entropies, abs=1e-4)


def test_what_cannot_be_scored_is_refused_and_the_decoder_goes_on(folder: Folder) -> None:
    made = backend(folder("llama"), decoder="slots")

    async def tried(row: ForcedTokens) -> str:
        with pytest.raises(SpecError) as caught:
            await made.score([row])
        return str(caught.value)

    async def all_of() -> list[str]:
        async with made:
            said = [
                await tried(ForcedTokens([], [1])),
                await tried(ForcedTokens([1], [49152])),
                await tried(ForcedTokens([1] * 2000, [1] * 49)),
            ]
            assert await made.score([]) == []
            assert await made.score([ForcedTokens([1], [])]) == [TokenScores([], [])]
            assert (await made.generate(request(0))).token_ids
            return said

    empty, beyond, long = asyncio.run(all_of())
    assert "prompt_ids must hold an id" in empty
    assert "49152" in beyond and "embedding" in beyond
    assert "2049 ids" in long and "2048 positions" in long


def test_text_is_forced_as_it_goes_on_after_the_prompt(folder: Folder) -> None:
    made = backend(folder("llama"))
    asked, text = prompt("Hi", "<think>\n"), "Well, then.</think>"
    row = made.force(asked, Generation([], "Well, then.", "stop_token", tail="</think>"))
    assert row.prompt_ids == made.encode(asked)
    assert made._encoder().decode(row.token_ids) == text
    assert row.encoded and row.text == text and (row.ends or [])[-1] == len(text)
    ids = [*row.token_ids, 2]
    given = made.force(asked, Generation(ids, text, "eos"))
    assert (given.token_ids, given.encoded) == (ids, False)
    assert (given.ends or [])[-2:] == [len(text)] * 2, "an end of sequence is no text"
    other = made.force(asked, Generation([7, 8], "??", "max_new_tokens"))
    assert other.encoded and made._encoder().decode(other.token_ids) == "??"
    spaced = made._encoder().continued("\nWell, then.\n</think>")
    stored = Generation(spaced, "Well, then.", "stop_token", tail="</think>")
    own = made.force(asked, stored)
    assert (own.token_ids, own.encoded) == (spaced, False), "rows keep no blanks around a text"
    assert own.text == "\nWell, then.\n</think>"
