"""What a run costs beside the model: rows per second of `backend=echo`, and `--cfg job`.

    python benchmarks/echo_rows.py --rows 10000
    python benchmarks/echo_rows.py --rows 10000 --root ../old    # another checkout, to compare

Per line: seconds of wall time, seconds of processor time, peak memory in MiB. "again" is the same
command over the finished folder. Both checkouts run in the interpreter that runs this file.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_ROOT = Path(__file__).parent.parent


def write_questions(path: Path, rows: int) -> None:
    """A JSONL file of sums, one question a line."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(rows):
            line = {"id": f"q{number}", "question": f"{number} + 1?", "answer": str(number + 1)}
            file.write(json.dumps(line) + "\n")


def measure(name: str, root: Path, arguments: list[str]) -> float:
    """Run the main door of a checkout and print what it took; returns its wall seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "launch/run.py", *arguments],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    wall = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    print(f"{name:<12} {wall:8.2f} s {processor:8.2f} s cpu {used.ru_maxrss / 1024:7.0f} MiB")
    return wall


def main() -> None:
    """Measure one checkout."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--root", type=Path, default=_ROOT, help="checkout to measure")
    given = parser.parse_args()
    root = given.root.resolve()
    with tempfile.TemporaryDirectory() as scratch:
        questions = Path(scratch) / "questions.jsonl"
        write_questions(questions, given.rows)
        line = ["task=qa", f"task.data.path={questions}", "backend=echo"]
        measure("--cfg job", root, [*line, "--cfg", "job"])
        line.append(f"run.root={scratch}/out")
        wall = measure("run", root, line)
        measure("again", root, line)
        shards = [*line, "run.shards=2", f"run.root={scratch}/shard"]
        measure("one shard", root, shards)
    print(f"{given.rows / wall:.0f} rows per second")


if __name__ == "__main__":
    main()
