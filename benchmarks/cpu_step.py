"""Where a decoding step of SmolLM2-135M goes on a processor: milliseconds of its threads by part.

    python benchmarks/cpu_step.py --rows 64 128
    python benchmarks/cpu_step.py --rows 64 128 --without shards packing

Every part's time is that of the threads that compute it, so that other work on the machine changes
it little; beside them stand the step's wall time, median and least.
"""

import argparse
import asyncio
import collections
import functools
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import decoder as bench
from shapes import Workload, endless
from torch import nn

from components.backends.hf.slots import attention
from components.backends.hf.slots import kv_cache as cache
from components.backends.hf.slots import packed_linear as packed
from components.backends.hf.slots import torch_steps as plain

_PARTS: tuple[tuple[str, type[Any], str], ...] = (
    ("matrix products", nn.Linear, "forward"),
    ("matrix products", packed.Packed, "forward"),
    ("attention", attention.DecodeFrame, "attend"),
    ("caching", cache.KVCache, "write"),
    ("entropy, logprob, draw", plain.TorchSteps, "_draw"),
    ("all", plain.TorchSteps, "_decode"),
)
_STEPS, _FIRST = 24, 12  # steps that are measured, and those before


def main() -> None:
    """Print a line for every number of rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--shape", default="smollm2")
    parser.add_argument("--tokenizer")
    parser.add_argument("--without", nargs="*", default=[], choices=bench.PARTS)
    options = parser.parse_args()
    options.device = "cpu"
    bench.leave_out(options.without)
    for rows in options.rows:
        options.slots = rows
        print(rows, "rows:", asyncio.run(measured(options, rows)), flush=True)


async def measured(options: argparse.Namespace, rows: int) -> dict[str, Any]:
    """Milliseconds of a step's parts, once all rows decode."""
    load = Workload(rows // 4, 4, 2 * (_FIRST + _STEPS), 2 * (_FIRST + _STEPS), 32, words=40)
    spent: dict[str, float] = collections.defaultdict(float)
    walls: list[float] = []
    async with bench.backend_of(options, "none") as backend:
        endless(backend)
        with timed(spent, walls, rows):
            await bench.together(backend, bench.requests(load))
        about = backend.describe()
    spent["attention"] -= spent["caching"]
    rest = spent.pop("all") - sum(spent.values())
    parts = {**spent, "the rest": rest}
    walls = walls[_FIRST:][:_STEPS]
    made = {part: round(1e3 * seconds / _STEPS, 1) for part, seconds in parts.items()}
    found = {"wall": statistics.median(walls), "least wall": min(walls)}
    made |= {name: round(1e3 * seconds, 1) for name, seconds in found.items()}
    return made | {name: about[name] for name in ("dtype", "threads", "peak_sequences")}


@contextmanager
def timed(spent: dict[str, float], walls: list[float], rows: int) -> Iterator[None]:
    """Note the threads' time of every part in steps of all rows, and those steps' wall time."""
    real = {(kind, name): getattr(kind, name) for _, kind, name in _PARTS}
    lock = threading.Lock()

    def noted(part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(work)
        def call(*args: Any, **kwargs: Any) -> Any:
            started = time.thread_time()
            made = work(*args, **kwargs)
            if _FIRST <= len(walls) < _FIRST + _STEPS:
                with lock:
                    spent[part] += time.thread_time() - started
            return made

        return call

    whole = plain.TorchSteps.decode

    def step(self: plain.TorchSteps, some: Any, steps: int) -> Any:
        started = time.perf_counter()
        made = whole(self, some, steps)
        if len(some) == rows:
            walls.append(time.perf_counter() - started)
        return made

    for part, kind, name in _PARTS:
        setattr(kind, name, noted(part, real[kind, name]))
    plain.TorchSteps.decode = step  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        plain.TorchSteps.decode = whole  # type: ignore[method-assign]
        for (kind, name), work in real.items():
            setattr(kind, name, work)


if __name__ == "__main__":
    main()
