"""Whole runs against a service with a rate limit, and against one that refuses a single request.

    python benchmarks/rate_limits.py [--only bucket stray] [--forms nothing retry-after-1 ...]

`bucket`: 1,000 rows against a bucket of 600 requests that gains 5 a second, once for each way in
which services say how long to wait. Answers take 2 seconds. Nothing can be faster than the bucket:
400 requests beyond its 600, at 5 a second, are 80 s.

`stray`: 1,000 rows against a service without a limit, of which in every second run one request (the
20th) gets a 429 and no other; three pairs, the median of their ratios.

Answers take 2 seconds. Pace and retries are the defaults of `conf/backend/base/gateway.yaml`. The
service is a process of its own. Every run must be complete without a failed row.
"""

import argparse
import asyncio
import io
import json
import logging
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from launch import api

SIZE, PER_SECOND = 600, 5.0
FORMS = (
    "nothing",
    "x-ratelimit-reset-requests",
    "retry-after-ms",
    "retry-after-true",
    "retry-after-1",
    "retry-after-0",
)


class Bucket:
    """Gives `size` answers at once and `per_second` more; `form` says how a refusal is worded."""

    def __init__(self, size: float, per_second: float, form: str) -> None:
        self.size, self.per_second, self.form = size, per_second, form
        self._left, self._at = size, time.monotonic()

    def refusal(self, number: int) -> dict[str, str] | None:
        """The headers of a 429; None where the request is answered."""
        now = time.monotonic()
        self._left = min(self.size, self._left + (now - self._at) * self.per_second)
        self._at = now
        if self._left >= 1:
            self._left -= 1
            return None
        wait = (1 - self._left) / self.per_second
        return {
            "nothing": {},
            "x-ratelimit-reset-requests": {
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-requests": f"{wait:.3f}s",
            },
            "retry-after-ms": {"retry-after-ms": str(int(1000 * wait) + 1)},
            "retry-after-true": {"Retry-After": f"{wait:.3f}"},
            "retry-after-1": {"Retry-After": "1"},
            "retry-after-0": {"Retry-After": "0"},
        }[self.form]


class Stray:
    """Refuses the request of one number (0: none), once."""

    def __init__(self, at: int) -> None:
        self.at = at

    def refusal(self, number: int) -> dict[str, str] | None:
        """The headers of a 429; None where the request is answered."""
        return {} if number == self.at else None


async def serve(rule: Bucket | Stray, latency: float) -> None:
    """Answer after `latency` seconds unless `rule` refuses; the port is printed."""
    from aiohttp import web
    from local_service import serve_for_ever

    message = {"role": "assistant", "content": "<think>so</think>\n<answer>LISTEN"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 300, "completion_tokens": 9, "total_tokens": 309}
    encoded = json.dumps({"object": "chat.completion", "choices": [choice], "usage": usage})
    refused = json.dumps({"error": {"message": "Rate limit reached for requests"}})
    num_asked = num_refused = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal num_asked, num_refused
        await request.read()
        num_asked += 1
        headers = rule.refusal(num_asked)
        if headers is not None:
            num_refused += 1
            kind = "application/json"
            return web.Response(status=429, text=refused, headers=headers, content_type=kind)
        await asyncio.sleep(latency)
        return web.Response(text=encoded, content_type="application/json")

    async def counts(request: web.Request) -> web.Response:
        return web.json_response({"asked": num_asked, "refused": num_refused})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    app.router.add_get("/counts", counts)
    await serve_for_ever(app)


@contextmanager
def serving(*arguments: str) -> Iterator[str]:
    """The address of a service of its own."""
    command = [sys.executable, __file__, "--serve", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.terminate()


def run(num_rows: int, *arguments: str) -> dict[str, Any]:
    """One whole run: its seconds, what the service counted, and what became of the rows."""
    from urllib.request import urlopen

    with tempfile.TemporaryDirectory() as name, serving(*arguments) as url:
        data = Path(name) / "clues.jsonl"
        rows = ({"id": f"c{i}", "clue": f"No {i}", "answer": "LISTEN"} for i in range(num_rows))
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        setup = api.compose(
            "task=crossword",
            f"task.data.path={data}",
            "backend=local_server",
            f"backend.endpoint={url}/v1",
            "backend.prefill=false",
            "backend.filters=[]",
            f"run.root={name}",
            f"run.cache_dir={name}/cache",
        )
        backend = api.open_backend(setup)
        started = time.perf_counter()
        with redirect_stdout(io.StringIO()):
            outcome = api.run(setup, backend)
        seconds = time.perf_counter() - started
        with urlopen(f"{url}/counts") as counts:
            counted = json.load(counts)
        failed = [path.read_text().count("\n") for path in Path(name).rglob("failures.jsonl")]
    return {"seconds": seconds, "state": outcome.state, "failed": sum(failed), **counted}


def bucket(num_rows: int, forms: list[str]) -> None:
    """One line of a table for each form of the refusal."""
    print("| what the 429 says | result | failed rows | seconds | 429s |\n|---|---|---|---|---|")
    for form in forms:
        found = run(num_rows, "--form", form, "--latency", "2")
        cells = (form, found["state"], found["failed"], f"{found['seconds']:.0f}", found["refused"])
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


def stray(num_rows: int, num_pairs: int) -> None:
    """Pairs of runs without a 429 and with one, and the median of their ratios."""
    ratios = []
    for _ in range(num_pairs):
        pair = [run(num_rows, "--stray", at, "--latency", "2") for at in ("0", "20")]
        assert [one["refused"] for one in pair] == [0, 1]
        assert not any(one["failed"] for one in pair)
        ratios.append(pair[1]["seconds"] / pair[0]["seconds"])
        print({"none": pair[0]["seconds"], "one 429": pair[1]["seconds"]}, flush=True)
    print(f"one stray 429: {statistics.median(ratios):.3f} of the time without one (median)")


def main() -> None:
    """Serve, or measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", default=["bucket", "stray"])
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--form", help=argparse.SUPPRESS)
    parser.add_argument("--stray", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--latency", type=float, default=2.0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        rule = Bucket(SIZE, PER_SECOND, given.form) if given.form else Stray(given.stray)
        asyncio.run(serve(rule, given.latency))
        return
    logging.disable(logging.WARNING)  # lines about waiting would cut the table
    print(f"{platform.machine()}, Python {platform.python_version()}")
    if "bucket" in given.only:
        bucket(given.rows, given.forms)
    if "stray" in given.only:
        stray(given.rows, given.pairs)


if __name__ == "__main__":
    main()
