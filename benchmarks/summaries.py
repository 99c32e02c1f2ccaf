"""Speed and memory of summaries against a JSON parser that builds every row, on the same files.

    python benchmarks/summaries.py [--rows 1000000] [--array-rows 60000] [--workers 2]

Two sets of rows: 2 KB without token arrays, and 32 KB with those of 300 tokens a pass. The parser
is msgspec's, untyped, over lines in one process: it makes every object of every row and keeps
nothing. `load` reads the files into a table with `--workers` processes; `summarize` is the whole
command, its statistics included. Memory is the peak of all its processes together (Pss). On a busy
machine the MB per second of processor time tell more than those by the clock.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil

SAMPLES = 8
PER_FILE = 100_000
WORDS = ("so", "we", "get", "therefore", "the", "value", "$x^2$", "of", "half", "\n")
LOAD = "from pipeline.analysis.row_files import find; import sys; "
LOAD += "from pipeline.analysis.table import load; "
LOAD += "t = load(find([sys.argv[1]]), workers=int(sys.argv[2])); print(len(t.rows))"


def pass_of(rng: random.Random, cue: str | None, arrays: bool) -> dict[str, Any]:
    """A pass object as a run writes it."""
    text = " ".join(rng.choice(WORDS) for _ in range(60))
    entropy = rng.random() * 2
    fields: dict[str, Any] = {
        "prev_output": None,
        "output": f"<think>{text}</think>\n<answer>{rng.randint(0, 5)}</answer>",
        "entropy": entropy,
        "entropy_think": entropy + 0.01,
        "entropy_answer": entropy / 2,
        "has_reconsider_cue": cue is not None,
        "reconsider_markers": [],
        "tokens_total": 300,
        "tokens_think": 280,
        "tokens_answer": 20,
        "stop_reason_think": "stop_token",
        "stop_reason_answer": "stop_token",
        "finish_reason": "stop_token",
        "valid_tag_structure": True,
        "segments": {"think": [7, 300], "answer": [320, 330]},
        "seconds": 1.25,
        "pred_answer": str(rng.randint(0, 5)),
        "pred_answer_canon": str(rng.randint(0, 5)),
        "is_correct_pred": rng.random() < 0.4,
        "prompt_tokens": 120,
    }
    if cue:
        fields |= {"cue": cue, "cue_text": f"{cue}, think again", "cue_hash": cue, "control": False}
        fields |= {"improved_over_pass1": rng.random() < 0.1}
    if arrays:
        fields["token_ids"] = [rng.randint(0, 50_000) for _ in range(300)]
        fields["entropies"] = [rng.random() for _ in range(300)]
        fields["logprobs"] = [-rng.random() for _ in range(300)]
        fields["token_ends"] = list(range(0, 1200, 4))
    return fields


def write(folder: Path, count: int, arrays: bool) -> Path:
    """Rows of several steps, from a few hundred different pairs of passes."""
    rng = random.Random(0)
    pairs = [
        ",".join(
            f'"{name}":{json.dumps(pass_of(rng, cue, arrays), separators=(",", ":"))}'
            for name, cue in (("pass1", None), ("pass2", "wait"))
        )
        for _ in range(300)
    ]
    for step, start in enumerate(range(0, count, PER_FILE)):
        path = folder / f"step-{step}/step{step:04d}_test.jsonl"
        path.parent.mkdir(parents=True)
        with path.open("w", encoding="utf-8") as file:
            for number in range(min(PER_FILE, count - start)):
                example, sample = divmod(number, SAMPLES)
                head = {
                    "problem": f"Problem {example}: what is {example} times three, less one half?",
                    "example_id": f"p{example}",
                    "sample_idx": sample,
                    "gold_answer_canon": "5",
                    "step": step,
                    "split": "test",
                }
                tail = '"task":"math","model":"m","temperature":0.7,"seed":42'
                pair = rng.choice(pairs)
                file.write(f"{json.dumps(head)[:-1]},{pair},{tail}}}\n")
    return folder


def size_of(folder: Path) -> int:
    """Bytes of its rows."""
    return sum(path.stat().st_size for path in folder.rglob("*.jsonl"))


def parse(folder: Path) -> tuple[float, float]:
    """Build every row with the parser; seconds by the clock and of the processor."""
    decode = msgspec.json.Decoder().decode
    clock, cpu = time.perf_counter(), time.process_time()
    for path in sorted(folder.rglob("*.jsonl")):
        with path.open("rb") as file:
            for line in file:
                decode(line)
    return time.perf_counter() - clock, time.process_time() - cpu


def measured(command: list[str]) -> tuple[float, float, float]:
    """Run a command; seconds by the clock and of the processor, peak MiB of all processes."""
    before = os.times()
    clock, peak = time.perf_counter(), 0.0
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        peak = max(peak, sum(memory(process.pid)) / 2**20)
        time.sleep(0.05)
    assert process.returncode == 0, command
    after = os.times()
    cpu = after.children_user + after.children_system
    cpu -= before.children_user + before.children_system
    return time.perf_counter() - clock, cpu, peak


def memory(pid: int) -> Iterator[int]:
    """Bytes of a process and of its children, shared pages divided among them."""
    try:
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            yield process.memory_full_info().pss
    except psutil.NoSuchProcess:
        return


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--array-rows", type=int, default=60_000)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    print(f"{'':34}{'MB/s':>8}{'MB/cpu s':>10}{'peak MiB':>10}")
    for name, count, arrays in (
        ("2 KB rows", given.rows, False),
        ("rows with token arrays", given.array_rows, True),
    ):
        with tempfile.TemporaryDirectory() as scratch:
            folder = write(Path(scratch) / "run", count, arrays)
            megabytes = size_of(folder) / 1e6
            print(f"{count} {name}, {megabytes:.0f} MB")
            clock, cpu = parse(folder)
            print(f"  {'parser, one process':32}{megabytes / clock:8.0f}{megabytes / cpu:10.0f}")
            load = [sys.executable, "-c", LOAD, str(folder), str(given.workers)]
            whole = [sys.executable, "launch/summarize.py", str(folder)]
            for label, command in (
                (f"load, {given.workers} processes", load),
                ("summarize", whole),
            ):
                clock, cpu, peak = measured(command)
                speeds = f"{megabytes / clock:8.0f}{megabytes / cpu:10.0f}{peak:10.0f}"
                print(f"  {label:32}{speeds}", flush=True)


if __name__ == "__main__":
    main()
