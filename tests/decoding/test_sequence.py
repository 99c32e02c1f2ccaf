"""A row takes ids one by one or several at once, and ends where the same rule ends it."""

import random
from collections.abc import Sequence

import pytest

from components.decoding.detokenizers import Pieces
from components.decoding.prompt_encoder import Encoded
from components.decoding.sequence import Limits, TokenSequence
from pipeline.protocols import Generation, Group, Message, Prompt, Request
from pipeline.spec import Sampling

# Whole characters, parts of one (U+00E9 is C3 A9), and an end-of-sequence id.
SPELLED = [b"a", b"b", b" stop", b"st", b"op", b"\xc3", b"\xa9", b"\n", b"<end>"]
END = 8
PIECES = Pieces.of(SPELLED)


def decode(ids: Sequence[int]) -> str:
    return b"".join(SPELLED[token] for token in ids).decode(errors="replace")


def row(cap: int, context: int, stop: tuple[str, ...], told: list[str]) -> TokenSequence:
    made = Request(
        prompt=Prompt((Message("user", ("x",)),)),
        stop=stop,
        cap=cap,
        sampling=Sampling(),
        seed=0,
        trace_id=0,
        group=Group("g", 0, 1),
        on_token=told.append,
    )
    found = TokenSequence(made, Encoded([0] * 4), Limits(frozenset([END]), context), decode, PIECES)
    found.start_time = 0.0
    return found


def run(made: TokenSequence, ids: Sequence[int], sizes: Sequence[int]) -> Generation:
    """Give ids in pieces of these sizes; what is not taken is not given again."""
    start = 0
    for size in sizes:
        if made.finish_reason is not None or start >= len(ids):
            break
        some = list(ids[start : start + size])
        numbers = [float(start + n) for n in range(len(some))]
        start += made.accept(some, numbers, [-n for n in numbers])
    return made.generation()


def case(seed: int) -> tuple[list[int], tuple[int, int, tuple[str, ...]], random.Random]:
    """Ids, and a row's cap, context and stop strings."""
    rng = random.Random(seed)
    ids = rng.choices(range(len(SPELLED)), [8, 8, 1, 2, 2, 2, 2, 2, 1], k=60)
    stop = rng.choice([(), ("stop",), ("b\n", "stop"), ("\u00e9",)])
    return ids, (rng.choice([3, 20, 60]), rng.choice([9, 30, 200]), stop), rng


@pytest.mark.parametrize("seed", range(300))
def test_ids_taken_together_make_the_row_of_ids_taken_alone(seed: int) -> None:
    ids, settings, rng = case(seed)
    alone: list[str] = []
    together: list[str] = []
    expected = run(row(*settings, alone), ids, [1] * 60)
    found = run(row(*settings, together), ids, [rng.choice([1, 4, 7]) for _ in range(60)])
    for name in ("token_ids", "text", "tail", "finish_reason", "ends", "entropies", "logprobs"):
        assert getattr(found, name) == getattr(expected, name), name
    assert "".join(together) == "".join(alone) == expected.text


def test_all_reasons_come_up_in_the_cases_above() -> None:
    cases = [case(seed)[:2] for seed in range(300)]
    reasons = {run(row(*settings, []), ids, [4] * 60).finish_reason for ids, settings in cases}
    assert reasons == {"eos", "stop_token", "max_new_tokens", "max_context"}


def test_what_goes_wrong_with_its_text_is_its_failure_and_it_takes_no_more() -> None:
    def broken(ids: Sequence[int]) -> str:
        raise OverflowError("this tokenizer reads no such id")

    made = row(9, 30, (), []).request
    for failing in (
        TokenSequence(made, Encoded([]), Limits(frozenset(), 30), broken),
        TokenSequence(made, Encoded([]), Limits(frozenset(), 30), decode, PIECES),
    ):
        assert failing.accept([len(SPELLED)], [0.0], [0.0]) == 0, "an id that has no spelling"
        assert failing.finished and isinstance(failing.failure, OverflowError | IndexError)
        assert failing.accept([0], [0.0], [0.0]) == 0 and failing.token_ids == []
