"""How long the fused sampler takes beside the plain one, and how often their draws differ.

On a CUDA device, from the repository's root:

    python benchmarks/sampling_kernel.py [--vocabulary 151936] [--draws 200000]

`flat` logits are those of random weights; `peaked` ones resemble a trained model's. Times are
medians of CUDA graph replays over inputs that take turns, so that none stays in the cache.
"""

import argparse
import statistics
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from components.decoding.cuda_sampler import CudaSampler
from components.decoding.fast_draw import draw
from components.decoding.sampling import SamplingTensors, entropy_and_logsumexp
from pipeline.spec import Sampling

DEVICE = torch.device("cuda")
SETTINGS = {
    "T 0.7, top_p 0.95": Sampling(temperature=0.7, top_p=0.95),
    "T 0.6, top_k 20, top_p 0.95": Sampling(temperature=0.6, top_k=20, top_p=0.95),
    "T 0.7": Sampling(temperature=0.7, top_p=1.0),
    "T 1, min_p 0.05": Sampling(temperature=1.0, top_p=1.0, min_p=0.05),
    "greedy": Sampling(temperature=0.0),
}
MORE = [
    Sampling(temperature=1.5, top_p=0.8),
    Sampling(temperature=1.0, top_p=1.0, top_k=300),
    Sampling(temperature=3.0, top_p=0.1),
]


def logits_of(rows: int, size: int, peaked: bool, seed: int) -> Tensor:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    logits = torch.randn(rows, size, generator=generator, device=DEVICE)
    if peaked:
        logits *= 2.5
        few = torch.randint(0, size, (rows, 40), generator=generator, device=DEVICE)
        high = 10 + 3 * torch.randn(rows, 40, generator=generator, device=DEVICE)
        logits.scatter_(1, few, high)
    return logits.bfloat16()


def sampler(rows: list[Sampling], size: int) -> CudaSampler:
    made = CudaSampler(len(rows), size, DEVICE, size, False)
    for name in ("temperature", "top_p", "min_p", "repetition_penalty", "top_k"):
        column = getattr(made, name)
        column.copy_(torch.tensor([getattr(row, name) for row in rows], dtype=column.dtype))
    made.seeds.random_()
    return made


def median_ms(steps: list[Callable[[], object]], repeats: int = 40) -> float:
    """Milliseconds of one step, where the steps take turns."""
    graphs = []
    for step in steps:
        step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        graphs.append(graph)
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for graph in graphs:
            graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / len(graphs))
    return statistics.median(times)


def timed(size: int, counts: list[int]) -> None:
    print(f"{'ms of one call':30}{'logits':8}" + "".join(f"{f'{n} rows':>10}" for n in counts))
    for name, row in SETTINGS.items():
        for peaked in (False, True):
            cells = []
            for count in counts:
                fused = sampler([row] * count, size)
                turns = min(8, max(2, 300_000_000 // (count * size * 2)))
                inputs = [logits_of(count, size, peaked, seed) for seed in range(turns)]
                cells.append(median_ms([partial(fused, x) for x in inputs]))
            kind = "peaked" if peaked else "flat"
            print(f"{name:30}{kind:8}" + "".join(f"{cell:10.3f}" for cell in cells), flush=True)


def floor(size: int, counts: list[int]) -> None:
    cells = []
    for count in counts:
        inputs = [logits_of(count, size, False, seed) for seed in range(4)]
        out = torch.empty_like(inputs[0])
        cells.append(median_ms([partial(out.copy_, x) for x in inputs]) / 2)
    print(f"{'half a copy of the logits':38}" + "".join(f"{cell:10.3f}" for cell in cells))


def plainly(size: int, count: int) -> None:
    logits = logits_of(count, size, True, 0)
    settings = SamplingTensors.of([SETTINGS["T 0.7, top_p 0.95"]] * count, DEVICE)
    seeds = torch.arange(count, device=DEVICE)
    times = []
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        whole = logits.float()
        entropy_and_logsumexp(whole)
        draw(whole, settings, seeds, seeds)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    print(f"plain PyTorch, {count} rows, T 0.7, top_p 0.95: {statistics.median(times):.3f} ms")


def differing(size: int, draws: int) -> None:
    rows = [*SETTINGS.values(), *MORE] * 64
    settings = SamplingTensors.of(rows, DEVICE)
    fused = sampler(rows, size)
    calls = -(-draws // len(rows))
    wrong = 0
    for call in range(calls):
        logits = logits_of(len(rows), size, call % 2 == 0, call)
        fused.seeds.random_()
        fused.indices.fill_(call)
        fused(logits)
        expected = draw(logits.float(), settings, fused.seeds, fused.indices)
        differs = fused.tokens != expected
        wrong += int(differs.sum())
        for row in differs.nonzero().flatten().tolist():
            print("differs:", call, rows[row], int(fused.tokens[row]), int(expected[row]))
    print(f"{wrong} of {calls * len(rows)} draws differ from plain PyTorch's")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--draws", type=int, default=200_000)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64, 256, 512, 1024])
    options = parser.parse_args()
    print(torch.cuda.get_device_name(), torch.__version__)
    floor(options.vocabulary, options.rows)
    timed(options.vocabulary, options.rows)
    plainly(options.vocabulary, 256)
    differing(options.vocabulary // 4, options.draws)


if __name__ == "__main__":
    main()
