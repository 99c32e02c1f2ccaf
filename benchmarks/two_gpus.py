"""Runs one model over two GPUs with NCCL: tensor parallel, and ZeRO-3.

    PYTHONPATH=. python benchmarks/two_gpus.py [--width 2048] [--layers 12]

The model is random, in float32, with a tokenizer of bytes, so that nothing is downloaded. Each way
runs as a user runs it (torchrun launch/run.py), and its ids are compared with those of one GPU.
Fails if a way fails, or if fewer than 90 % of its passes have the ids of one GPU (sums over ranks
are rounded in another order). Takes about 90 s.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from components.models.architectures.byte_tokenizer import byte_tokenizer

ROOT = Path(__file__).parent.parent
LENGTHS = (1, 200, 3, 60, 500, 2, 120)  # words of the prompts
OFFLOAD = "backend.config.zero_optimization.offload_param.device=cpu"
WAYS = {
    "one GPU": (0, ["backend=hf", "backend.decoder=generate", "backend.device=cuda:0"]),
    "layers on two GPUs (device_map)": (0, ["backend=hf", "backend.device_map=balanced"]),
    "tensor parallel over 2": (2, ["backend=hf", "backend.tp_plan=auto"]),
    "ZeRO-3 over 2": (2, ["backend=deepspeed"]),
    "ZeRO-3 over 2, weights in the processor's memory": (2, ["backend=deepspeed", OFFLOAD]),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=48)
    given = parser.parse_args()
    if torch.cuda.device_count() < 2:
        print("two GPUs are needed")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        make_model(here / "model", given.width, given.layers)
        questions = [json.dumps({"id": f"q{n}", "question": "why not " * n}) for n in LENGTHS]
        (here / "questions.jsonl").write_text("\n".join(questions))
        return compare(here, given.tokens)


def make_model(folder: Path, width: int, layers: int) -> None:
    """A random Llama of bytes."""
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 128,
        max_position_embeddings=8192,
        initializer_range=0.1,
        eos_token_id=None,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)


def compare(here: Path, tokens: int) -> int:
    """Run every way and print how it went. Returns the exit status."""
    failed = False
    reference: dict[str, list[int]] = {}
    for name, (ranks, words) in WAYS.items():
        start = time.monotonic()
        status, said = run(here, name, ranks, words, tokens)
        seconds = time.monotonic() - start
        if status:
            failed = True
            print(f"{name}: FAILED with status {status}\n{said[-3000:]}", flush=True)
            continue
        rows, about = read(here / "out" / str(list(WAYS).index(name)))
        reference = reference or rows
        same = sum(rows[key] == reference[key] for key in reference)
        failed |= same < 0.9 * len(reference)
        memory = about["backend"]["peak_memory_bytes"] / 2**20
        print(
            f"{name}: {same} of {len(reference)} passes with the ids of one GPU, "
            f"{about['seconds']:.1f} s of the run, {seconds:.0f} s in all, peak of rank 0 "
            f"{memory:.0f} MiB",
            flush=True,
        )
    return int(failed)


def run(here: Path, name: str, ranks: int, words: list[str], tokens: int) -> tuple[int, str]:
    """One run as a user types it; what it printed."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [
            *([sys.executable] if not ranks else [sys.executable, *torchrun]),
            "launch/run.py",
            "task=qa",
            f"task.data.path={here}/questions.jsonl",
            "task.columns.answer=null",
            "model=local",
            f"model.path={here}/model",
            "quantization=fp32",
            "cue=wait",
            f"sampling.max_new_tokens={tokens}",
            "sampling=greedy",
            "run.name=run",
            f"run.root={here}/out/{list(WAYS).index(name)}",
            *words,
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout


def read(folder: Path) -> tuple[dict[str, list[int]], dict[str, Any]]:
    """Ids by question and pass, and the record of the attempt."""
    (rows,) = folder.glob("run/*/*/step*.jsonl")
    passes = {}
    for line in rows.read_text().splitlines():
        row = json.loads(line)
        for name in ("pass1", "pass2"):
            passes[f"{row['example_id']} {name}"] = row[name]["token_ids"]
    record = json.loads((rows.parent / "run.json").read_text())
    return passes, record["attempts"][-1]


if __name__ == "__main__":
    sys.exit(main())
