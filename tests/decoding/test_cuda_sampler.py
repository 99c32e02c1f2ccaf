"""The fused sampler against the plain one: same ids, same measurements, for every filter.

Runs on a CUDA device; with `TRITON_INTERPRET=1` (and NumPy before 2.4) also without one, slowly.
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from components.decoding.fast_draw import draw
from components.decoding.sampling import SamplingTensors, entropy_and_logsumexp, filtered
from pipeline.spec import Sampling

triton = pytest.importorskip("triton", reason="the fused sampler needs triton")
INTERPRETED = bool(triton.knobs.runtime.interpret)
if not (torch.cuda.is_available() or INTERPRETED):
    pytest.skip("the fused sampler needs a CUDA device", allow_module_level=True)

from components.decoding.cuda_sampler import CudaSampler  # noqa: E402

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
ROUNDS = 1 if INTERPRETED else 40


def sampling(**fields: Any) -> Sampling:
    return Sampling(**{"temperature": 1.0, "top_p": 1.0} | fields)


ROWS = [
    sampling(temperature=0.7, top_p=0.95),
    sampling(temperature=0.0, top_p=0.9, top_k=3, min_p=0.5),
    sampling(temperature=1.5),
    sampling(top_k=7),
    sampling(top_k=3000, top_p=0.999),
    sampling(min_p=0.05),
    sampling(temperature=2.0, top_p=0.9999),
    sampling(temperature=1e-7, top_p=0.5, top_k=3),
    sampling(temperature=3.0, top_p=0.05),
    sampling(temperature=0.6, top_k=20, top_p=0.8, min_p=0.01),
    sampling(temperature=0.9, top_p=0.5, repetition_penalty=1.3),
    sampling(temperature=1e-38),
]


def sampler(rows: list[Sampling], size: int, bound: int, penalises: bool = False) -> CudaSampler:
    made = CudaSampler(len(rows), size, DEVICE, bound, penalises)
    for name in ("temperature", "top_p", "min_p", "repetition_penalty", "top_k"):
        column = getattr(made, name)
        column.copy_(torch.tensor([getattr(row, name) for row in rows], dtype=column.dtype))
    return made


def logits_of(rows: int, size: int, seed: int, width: float) -> Tensor:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return torch.randn(rows, size, generator=generator, device=DEVICE) * width


def reseed(fused: CudaSampler, seed: int) -> None:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    shape = fused.seeds.shape
    fused.seeds.copy_(torch.randint(-(2**62), 2**62, shape, generator=generator, device=DEVICE))
    fused.indices.copy_(torch.randint(0, 800, shape, generator=generator, device=DEVICE))
    fused.tokens.fill_(-7)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [0.5, 3.0, 8.0])
def test_ids_are_those_of_the_plain_sampler(kind: torch.dtype, width: float) -> None:
    size, bound = (5000, 4900) if INTERPRETED else (50_001, 49_900)
    fused = sampler(ROWS, size, bound)
    settings = SamplingTensors.of(ROWS, DEVICE)
    allowed = torch.arange(size, device=DEVICE) < bound
    plain_rows = [row for row in range(len(ROWS)) if ROWS[row].repetition_penalty == 1]
    for seed in range(ROUNDS):
        logits = logits_of(len(ROWS), size, seed, width).to(kind)
        reseed(fused, seed)
        fused(logits)
        plain = draw(logits.float(), settings, fused.seeds, fused.indices, allowed)
        assert torch.equal(fused.tokens[plain_rows], plain[plain_rows]), seed


@pytest.mark.parametrize(("size", "bound"), [(256, 256), (61, 50)])
def test_a_vocabulary_of_less_than_a_tile_is_drawn_from_as_any_other(size: int, bound: int) -> None:
    rows = [each for each in ROWS if each.repetition_penalty == 1]
    fused, settings = sampler(rows, size, bound), SamplingTensors.of(rows, DEVICE)
    allowed = torch.arange(size, device=DEVICE) < bound
    for seed in range(ROUNDS):
        logits = logits_of(len(rows), size, seed, 3.0)
        reseed(fused, seed)
        fused(logits)
        plain = draw(logits, settings, fused.seeds, fused.indices, allowed)
        assert torch.equal(fused.tokens, plain), seed
        expected, _ = entropy_and_logsumexp(logits)
        assert torch.allclose(fused.entropies, expected, rtol=1e-5, atol=1e-5)


def test_seen_ids_are_penalised_and_drawn_ids_become_seen() -> None:
    size, rows = 3000, [sampling(repetition_penalty=1.5, temperature=0.5), ROWS[10], ROWS[0]]
    fused = sampler(rows, size, size, penalises=True)
    seen = torch.zeros(3, size, dtype=torch.bool, device=DEVICE)
    for row in range(3):
        ids = torch.randint(0, size, (400,), generator=torch.Generator().manual_seed(row))
        seen[row, ids.to(DEVICE)] = True
        fused.mark_seen(row, ids)
    for seed in range(ROUNDS):
        logits = logits_of(3, size, seed, 3.0)
        reseed(fused, seed)
        fused(logits)
        settings = SamplingTensors.of(rows, DEVICE)
        plain = draw(logits, settings, fused.seeds, fused.indices, seen=seen)
        assert torch.equal(fused.tokens, plain)
        seen.scatter_(1, plain.unsqueeze(1), True)


def test_entropy_and_logprob_are_those_of_the_raw_distribution() -> None:
    size = 5000 if INTERPRETED else 151_936
    rows = [sampling(temperature=0.7, top_p=0.95)] * 6
    fused = sampler(rows, size, size - 100)
    logits = logits_of(6, size, 1, 1.0) * torch.tensor(
        [[0.01], [0.7], [3.0], [6.0], [20.0], [3.0]], device=DEVICE
    )
    logits[5] += 300.0
    logits[2, 5:700] = -torch.inf
    logits[3, 9] = torch.finfo(torch.float32).min
    reseed(fused, 1)
    fused(logits)
    exact = logits.double().log_softmax(-1)
    entropy = -(exact.exp() * exact.clamp(min=-1e9)).sum(-1)
    assert torch.allclose(fused.entropies.double(), entropy, rtol=2e-6, atol=2e-6)
    logprob = exact.gather(1, fused.tokens.unsqueeze(1)).squeeze(1)
    assert torch.allclose(fused.logprobs.double(), logprob, atol=5e-5)
    assert torch.allclose(entropy_and_logsumexp(logits)[0], fused.entropies, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 3, 70] if INTERPRETED else [1, 3, 70, 200, 300, 600, 1024])
def test_a_row_draws_the_same_in_any_company(rows: int) -> None:
    size = 3000 if INTERPRETED else 20_000
    mixed = [ROWS[row % len(ROWS)] for row in range(rows)]
    fused = sampler(mixed, size, size)
    logits = logits_of(rows, size, rows, 3.0)
    reseed(fused, rows)
    fused(logits)
    together, entropies = fused.tokens.clone(), fused.entropies.clone()
    fused(logits[: (rows + 1) // 2])
    assert torch.equal(fused.tokens, together)
    assert torch.allclose(fused.entropies, entropies, rtol=1e-6, atol=1e-6)


def test_ties_by_the_thousand_and_logits_that_are_not_numbers_end() -> None:
    size = 3000
    rows = [sampling(temperature=0.0), sampling(top_k=5, top_p=0.5), sampling(top_p=0.5)]
    fused = sampler(rows, size, size - 8)
    logits = torch.zeros(3, size, device=DEVICE)
    logits[:, ::3] = 1.0
    reseed(fused, 3)
    fused(logits)
    settings = SamplingTensors.of(rows, DEVICE)
    allowed = torch.arange(size, device=DEVICE) < size - 8
    plain = draw(logits, settings, fused.seeds, fused.indices, allowed)
    assert torch.equal(fused.tokens, plain)
    logits[:, 11] = torch.nan
    fused(logits)
    assert bool(fused.entropies.isnan().all())
    assert 0 <= int(fused.tokens.min()) and int(fused.tokens.max()) < size - 8


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
@pytest.mark.skipif(INTERPRETED, reason="40,000 rows take too long in Triton's interpreter")
def test_draws_follow_the_exact_distribution(fields: dict[str, Any]) -> None:
    count, size, calls = 1000, 24, 40
    logits = logits_of(1, size, 4, 1.5)
    settings = SamplingTensors.of([sampling(**fields)], DEVICE)
    exact = filtered(logits, settings).double().softmax(-1)[0]
    fused = sampler([sampling(**fields)] * count, size, size)
    counts = torch.zeros(size, dtype=torch.double, device=DEVICE)
    for call in range(calls):
        reseed(fused, call)
        fused(logits.expand(count, size))
        counts += torch.bincount(fused.tokens, minlength=size)
    expected = exact * count * calls
    assert counts[exact == 0].sum() == 0
    likely = expected >= 5
    statistic = float(((counts - expected) ** 2 / expected)[likely].sum())
    freedom = int(likely.sum()) - 1
    spread = 2 / (9 * freedom)
    assert ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread) < 3.5


@pytest.mark.skipif(INTERPRETED, reason="a CUDA graph needs a CUDA device")
def test_a_captured_step_follows_what_is_written_into_its_tensors() -> None:
    size = 20_000
    fused = sampler(ROWS, size, size)
    logits = logits_of(len(ROWS), size, 0, 3.0)
    fused(logits)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fused(logits)
    for seed in range(5):
        logits.copy_(logits_of(len(ROWS), size, 50 + seed, 3.0))
        reseed(fused, seed)
        graph.replay()
        drawn = fused.tokens.clone()
        fused(logits)
        assert torch.equal(fused.tokens, drawn) and int(drawn.min()) >= 0
