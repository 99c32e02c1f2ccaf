"""The sampler against Transformers' own filters, exact distributions, and a plain Python noise."""

import math
import random
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from components.decoding.fast_draw import draw, sample
from components.decoding.noise import noise
from components.decoding.sampling import SamplingTensors, choose, entropy_and_logsumexp, filtered
from pipeline.spec import Sampling

CPU = torch.device("cpu")
MASK = (1 << 32) - 1


def sampling(**fields: Any) -> Sampling:
    return Sampling(**{"temperature": 1.0, "top_p": 1.0} | fields)


def settings(rows: int = 1, **fields: Any) -> SamplingTensors:
    return SamplingTensors.of([sampling(**fields)] * rows, CPU)


def logits_of(rows: int, size: int, seed: int = 0, width: float = 4.0) -> Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)) * width


def seeds_of(rows: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**62), 2**62, (rows,), generator=generator)


def mixed(word: int) -> int:
    word ^= word >> 16
    word = word * 0x7FEB352D & MASK
    word ^= word >> 15
    word = word * 0x846CA68B & MASK
    return word ^ word >> 16


def plain_noise(seed: int, index: int, token: int) -> float:
    """The field as the module's text defines it, in Python's integers and doubles."""
    seed &= (1 << 64) - 1
    first = mixed((seed & MASK) ^ mixed(index))
    second = mixed((seed >> 32) ^ mixed((first + 0x9E3779B9) & MASK))
    word = mixed(mixed(token ^ first) ^ second)
    uniform = min((word >> 8) * 2**-24 + ((word & 255) + 0.5) * 2**-32, 1 - 2**-24)
    return -math.log(-math.log1p(-uniform))


def test_the_noise_is_the_documented_field() -> None:
    cases = [
        (seed, i, token)
        for seed in (0, -1, 2**63 - 1, -(2**63), 987654321987654321)
        for i in (0, 1, 749)
        for token in (0, 1, 2, 50_000, 151_935)
    ]
    made = noise(*(torch.tensor(column) for column in zip(*cases, strict=True)))
    exact = torch.tensor([plain_noise(*case) for case in cases])
    # Float32 rounds a uniform near 1 coarsely, where the noise lies near -2.8.
    assert torch.allclose(made, exact, atol=2e-3)
    upper = exact > -2
    assert torch.allclose(made[upper], exact[upper], atol=1e-4)


def test_the_noise_is_gumbel_distributed_and_bounded() -> None:
    field = noise(seeds_of(64).unsqueeze(1), torch.arange(64).unsqueeze(1), torch.arange(20_000))
    assert -2.82 <= float(field.min()) and float(field.max()) <= 22.88
    for threshold in (-1.5, 0.0, 1.0, 3.0, 6.0, 9.0):
        expected = math.exp(-math.exp(-threshold))
        deviation = math.sqrt(expected * (1 - expected) / field.numel())
        share = float((field <= threshold).double().mean())
        assert abs(share - expected) < 5 * deviation, threshold


def test_noise_of_neighbouring_seeds_indices_and_ids_is_uncorrelated() -> None:
    ids = torch.arange(100_000)

    def field(seed: int, index: int, shift: int = 0) -> Tensor:
        return noise(torch.tensor(seed), torch.tensor(index), ids + shift)

    base = field(5, 7)
    for other in (field(6, 7), field(5, 8), field(5, 7, 1), field(7, 5), field(5 + (1 << 32), 7)):
        assert abs(float(torch.corrcoef(torch.stack((base, other)))[0, 1])) < 0.016


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.7},
        {"top_k": 5},
        {"top_k": 5000},
        {"top_p": 0.9},
        {"top_p": 1e-4},
        {"min_p": 0.1},
        {"temperature": 0.3, "top_k": 40, "top_p": 0.8, "min_p": 0.02},
        {"temperature": 1.7, "top_k": 300, "top_p": 0.99},
        {"repetition_penalty": 1.3, "temperature": 0.9, "top_p": 0.95},
        {"repetition_penalty": 0.8, "top_k": 30},
    ],
)
def test_filters_keep_what_transformers_keeps(fields: dict[str, Any]) -> None:
    logits = logits_of(12, 3000, width=3.0)
    ids = torch.randint(0, 3000, (12, 50), generator=torch.Generator().manual_seed(1))
    theirs = LogitsProcessorList()
    row = sampling(**fields)
    if row.repetition_penalty != 1:
        theirs.append(RepetitionPenaltyLogitsProcessor(row.repetition_penalty))
    theirs.append(TemperatureLogitsWarper(row.temperature))
    if row.top_k:
        theirs.append(TopKLogitsWarper(row.top_k))
    if row.top_p < 1:
        theirs.append(TopPLogitsWarper(row.top_p))
    if row.min_p:
        theirs.append(MinPLogitsWarper(row.min_p))
    expected = theirs(ids, logits.clone())
    seen = torch.zeros(12, 3000, dtype=torch.bool).scatter_(1, ids, True)
    made = filtered(logits, settings(12, **fields), seen=seen)
    assert torch.equal(made.isfinite(), expected.isfinite())
    assert torch.allclose(made.softmax(-1), expected.softmax(-1), atol=1e-6)


def test_tied_logits_pass_a_filter_together() -> None:
    logits = torch.tensor([[2.0, 1.0, 1.0, 0.0, 2.0]])
    assert filtered(logits, settings(top_k=1)).isfinite().tolist() == [
        [True, False, False, False, True]
    ]
    kept = filtered(logits, settings(top_p=0.8)).isfinite()
    assert kept.tolist() == [[True, True, True, False, True]]


def test_raw_logits_are_left_as_they_are() -> None:
    logits = logits_of(3, 400)
    before = logits.clone()
    rows = [sampling(top_k=5, repetition_penalty=2.0), sampling(), sampling(temperature=0.0)]
    seen = torch.ones(3, 400, dtype=torch.bool)
    draw(
        logits,
        SamplingTensors.of(rows, CPU),
        seeds_of(3),
        torch.zeros(3, dtype=torch.long),
        seen=seen,
    )
    entropy_and_logsumexp(logits)
    assert torch.equal(logits, before)


ROWS = [
    sampling(temperature=0.7, top_p=0.95),
    sampling(temperature=0.0, top_p=0.95),
    sampling(temperature=1.5),
    sampling(top_k=7),
    sampling(top_k=900, top_p=0.999),
    sampling(min_p=0.05),
    sampling(temperature=2.0, top_p=0.9999),
    sampling(temperature=1e-7, top_p=0.5, top_k=3),
]


def test_a_row_draws_the_same_id_alone_and_in_any_company() -> None:
    logits, seeds = logits_of(8, 5000), seeds_of(8)
    indices = torch.arange(8)

    def drawn(rows: list[int]) -> list[int]:
        some = SamplingTensors.of([ROWS[row] for row in rows], CPU)
        return draw(logits[rows], some, seeds[rows], indices[rows]).tolist()

    together = drawn(list(range(8)))
    assert [drawn([row])[0] for row in range(8)] == together
    assert drawn([5, 3, 0])[::-1] == [together[0], together[3], together[5]]
    narrow = [0, 1, 3, 4, 6, 7]
    assert drawn(narrow) == [together[row] for row in narrow]


def test_drawing_is_the_argmax_of_filtered_logits_plus_noise() -> None:
    for seed in range(20):
        logits, seeds, indices = logits_of(8, 5000, seed), seeds_of(8, seed), torch.arange(8) + seed
        chosen = choose(filtered(logits, SamplingTensors.of(ROWS, CPU)), seeds, indices)
        assert torch.equal(draw(logits, SamplingTensors.of(ROWS, CPU), seeds, indices), chosen)


def anything(chance: random.Random) -> Sampling:
    return Sampling(
        temperature=chance.choice([0.0, 0.2, 0.7, 1.0, 4.0, 1e-7]),
        top_p=chance.choice([1.0, 1.0, 0.9999, 0.95, 0.5, 0.05]),
        top_k=chance.choice([0, 0, 0, 1, 5, 20, 300, 10**6]),
        min_p=chance.choice([0.0, 0.0, 0.05, 0.5]),
        repetition_penalty=chance.choice([1.0, 1.0, 1.3]),
    )


@pytest.mark.parametrize("size", [30, 700, 5000, 150_000])
def test_any_settings_on_any_logits_draw_what_the_filters_leave(size: int) -> None:
    for seed in range(4 if size > 10_000 else 40):
        chance = random.Random(seed)
        rows = [anything(chance) for _ in range(chance.choice([1, 3, 9]))]
        logits = logits_of(len(rows), size, seed, chance.choice([0.3, 1.0, 3.0, 8.0]))
        if chance.random() < 0.4:
            logits = logits.bfloat16().float()
        if chance.random() < 0.1:
            logits[:, ::2] = 1.0
        shape = torch.rand(len(rows) + 1, size, generator=torch.Generator().manual_seed(seed))
        allowed = shape[-1] < 0.8 if chance.random() < 0.5 else None
        seen = shape[:-1] < 0.1 if chance.random() < 0.5 else None
        some, seeds = SamplingTensors.of(rows, CPU), seeds_of(len(rows), seed)
        indices = torch.arange(len(rows)) + seed
        drawn = draw(logits, some, seeds, indices, allowed, seen)
        expected = choose(filtered(logits, some, allowed, seen), seeds, indices)
        random_rows = some.temperature.squeeze(1) > 0
        assert torch.equal(drawn[random_rows], expected[random_rows]), seed


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.5},
        {"top_p": 0.8},
        {"top_k": 6},
        {"min_p": 0.08},
        {"temperature": 1.4, "top_k": 12, "top_p": 0.9, "min_p": 0.03},
    ],
)
def test_draws_follow_the_exact_distribution(fields: dict[str, Any]) -> None:
    count, size = 40_000, 24
    logits = logits_of(1, size, seed=4, width=1.5)
    exact = filtered(logits.double().float(), settings(**fields)).double().softmax(-1)[0]
    seeds = seeds_of(count, seed=11)
    indices = torch.arange(count) % 700
    chosen = draw(logits.expand(count, size), settings(count, **fields), seeds, indices)
    counts = torch.bincount(chosen, minlength=size).double()
    likely = exact * count >= 5
    assert counts[exact == 0].sum() == 0
    statistic = float(((counts - exact * count) ** 2 / (exact * count))[likely].sum())
    freedom = int(likely.sum()) - 1
    # Wilson and Hilferty: the cube root of chi-square over its freedom is close to normal.
    spread = 2 / (9 * freedom)
    assert ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread) < 3.5


def test_temperature_near_zero_is_greedy_and_leftover_filters_do_no_harm() -> None:
    logits = logits_of(16, 2000)
    for temperature in (0.0, 0, 1e-7, 1e-38):
        some = settings(16, temperature=temperature, top_p=0.9, top_k=5, min_p=0.1)
        chosen = draw(logits, some, seeds_of(16), torch.arange(16))
        assert torch.equal(chosen, logits.argmax(-1))


def test_ids_that_the_tokenizer_lacks_are_never_drawn() -> None:
    logits = logits_of(64, 50)
    logits[:, 40:] += 30
    allowed = torch.arange(50) < 40
    for fields in ({}, {"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.5}):
        chosen = draw(logits, settings(64, **fields), seeds_of(64), torch.arange(64), allowed)
        assert int(chosen.max()) < 40
    assert float(entropy_and_logsumexp(logits)[0].max()) < math.log(50)


def test_entropy_and_logsumexp_match_double_precision() -> None:
    logits = torch.cat((logits_of(4, 49_152, width=0.1), logits_of(4, 49_152, 1, 5.0) + 300))
    logits[0, 7] = -torch.inf
    logits[1] = -100.0
    logits[1, 3] = 100.0
    entropy, total = entropy_and_logsumexp(logits)
    exact = logits.double().log_softmax(-1)
    expected = -(exact.exp() * exact.clamp(min=-1e9)).sum(-1)
    assert torch.allclose(entropy.double(), expected, atol=1e-5)
    assert torch.allclose(total.double(), logits.double().logsumexp(-1), atol=1e-4)


def test_a_repetition_penalty_spares_rows_without_one() -> None:
    logits = logits_of(2, 100)
    rows = [sampling(temperature=0.0, repetition_penalty=50.0), sampling(temperature=0.0)]
    seen = torch.zeros(2, 100, dtype=torch.bool).scatter_(1, logits.argmax(-1, keepdim=True), True)
    chosen = draw(
        logits,
        SamplingTensors.of(rows, CPU),
        seeds_of(2),
        torch.zeros(2, dtype=torch.long),
        seen=seen,
    )
    assert chosen[0] != logits[0].argmax() and chosen[1] == logits[1].argmax()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.7, "top_p": 0.95},
        {"temperature": 1.2},
        {"temperature": 0},
        {"top_k": 20, "top_p": 0.9},
        {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.3},
    ],
)
def test_one_reading_of_the_logits_gives_the_draw_and_what_is_observed(
    fields: dict[str, Any], dtype: torch.dtype
) -> None:
    logits = logits_of(11, 49_000).to(dtype)
    logits[3, 100:200] = -torch.inf
    allowed = torch.ones(logits.shape[-1], dtype=torch.bool)
    allowed[-40:] = False
    seen = torch.rand(logits.shape, generator=torch.Generator().manual_seed(1)) < 0.1
    some = settings(len(logits), **fields)
    for may in (None, allowed):
        given = (some, seeds_of(len(logits)), torch.arange(len(logits)), may, seen)
        made = sample(logits, *given)
        entropies, totals = entropy_and_logsumexp(logits.float())
        assert torch.equal(made.tokens, draw(logits.float(), *given))
        assert torch.allclose(made.entropies, entropies, atol=1e-5)
        chosen = logits.float().gather(-1, made.tokens.unsqueeze(-1)).squeeze(-1)
        assert torch.allclose(made.logprobs, chosen - totals, atol=1e-5)
