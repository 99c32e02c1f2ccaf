"""Grading speed: our pool against a bare math-verify loop, on the same 4,000 rows in one run.

    python benchmarks/grading.py [--data FILE.jsonl] [--rows 4000] [--workers 1]

Rows are answers of a MATH-style set (the embedded one, or `--data`), each met by eight predictions
as models give them: the answer, boxed or in other spelling, and near misses. `--workers 1` compares
one process with one.
"""

import argparse
import json
import logging
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor

from math_verify import parse, verify

from components.data_sets.records import Source, load
from components.grading.math.pool import Pool

Pair = tuple[str, str]


def pairs(path: str | None, count: int) -> list[Pair]:
    """(gold, prediction) pairs, `count` of them, eight predictions for each answer in turn."""
    golds = [str(row.values["answer"]) for row in load(Source(path=path), "math.jsonl")]
    made: list[Pair] = []
    while len(made) < count:
        for gold in golds:
            made.extend((gold, pred) for pred in predictions(gold))
    return made[:count]


def predictions(gold: str) -> list[str]:
    """Eight predictions for an answer: four that mean the same, four that may not."""
    bumped = re.sub(r"\d", lambda m: str((int(m[0]) + 1) % 10), gold, count=1)
    return [
        gold,
        f"\\boxed{{{gold}}}",
        gold.replace("\\frac", "\\dfrac").replace("\\left", "").replace("\\right", ""),
        f"{gold} + 0",
        bumped,
        f"-{gold}",
        f"{gold} + 1",
        f"\\frac{{{gold}}}{{2}}",
    ]


def bare(rows: list[Pair]) -> tuple[float, int]:
    """Seconds of a plain loop, and how many were equal."""
    begun = time.perf_counter()
    equal = 0
    for gold, pred in rows:
        ours = parse(f"\\boxed{{{gold}}}", parsing_timeout=None)
        theirs = parse(f"\\boxed{{{pred}}}", parsing_timeout=None)
        equal += bool(verify(ours, theirs, timeout_seconds=None))
    return time.perf_counter() - begun, equal


def pooled(rows: list[Pair], workers: int) -> tuple[float, int]:
    """Seconds of the pool, its start included, and how many were equal."""
    begun = time.perf_counter()
    pool = Pool(workers)
    with ThreadPoolExecutor(workers) as threads:
        equal = sum(v.equal for v in threads.map(lambda pair: pool.grade(*pair), rows))
    pool.close()
    return time.perf_counter() - begun, equal


def main() -> None:
    """Run both, print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="JSONL with a column answer; default: the embedded problems")
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    rows = pairs(options.data, options.rows)
    ours, ours_equal = pooled(rows, options.workers)
    theirs, theirs_equal = bare(rows)
    result = {
        "rows": len(rows),
        "workers": options.workers,
        "processors": os.cpu_count(),
        "pool_rows_per_s": round(len(rows) / ours, 1),
        "bare_rows_per_s": round(len(rows) / theirs, 1),
        "ratio": round(theirs / ours, 2),
        "pool_equal": ours_equal,
        "bare_equal": theirs_equal,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
