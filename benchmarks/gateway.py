"""Throughput of a run over HTTP against a bare loop of the same client, in one run.

    python benchmarks/gateway.py [--flight 500] [--latency 1.0] [--requests 4000] [--rounds 2]

A server in a process of its own answers every request after `latency` seconds. The bare loop keeps
`flight` calls of the official client (over aiohttp, its faster transport) under way and keeps
nothing. The run is everything that `launch/run.py` does: prompts, pace, retries, journal, grading,
rows on disk. Both make the same requests; rounds alternate. The file system's own speed is shown,
since the run flushes every answer to it.
"""

import argparse
import asyncio
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from openai import AsyncOpenAI, DefaultAioHttpClient

from launch import api
from launch.config.compose import register_schema

WORDS = 150  # in an answer


def composed(*overrides: str) -> DictConfig:
    """The config of a command line."""
    register_schema()
    conf = Path(__file__).parent.parent / "conf"
    with initialize_config_dir(str(conf.absolute()), version_base="1.3"):
        return compose("config", list(overrides))


async def serve(latency: float) -> None:
    """Answer after `latency` seconds, for ever; the port is printed."""
    from aiohttp import web
    from local_service import serve_for_ever

    text = "<think>" + "word " * WORDS + "</think>\n<answer>LISTEN"
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 300, "completion_tokens": WORDS, "total_tokens": 300 + WORDS}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    body = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "usage": usage}
    encoded = json.dumps(body | {"choices": [choice]}).encode()

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(latency)
        return web.Response(body=encoded, content_type="application/json")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    await serve_for_ever(app)


async def bare(url: str, count: int, flight: int, messages: list[dict[str, str]]) -> None:
    """`count` calls, `flight` at a time."""
    from httpx2 import Limits

    limits = Limits(max_connections=flight, max_keepalive_connections=flight)
    client = AsyncOpenAI(
        api_key="none", base_url=url, http_client=DefaultAioHttpClient(limits=limits)
    )
    numbers = itertools.count()

    async def worker() -> None:
        asked: Any = messages
        while next(numbers) < count:
            done = await client.chat.completions.create(
                model="m", messages=asked, max_tokens=900, temperature=0.7, top_p=0.95, seed=1
            )
            assert done.choices[0].message.content

    await asyncio.gather(*(worker() for _ in range(flight)))
    await client.close()


def line(url: str, folder: Path, data: Path, flight: int) -> list[str]:
    """The run's command line."""
    return [
        "task=crossword",
        f"task.data.path={data}",
        "backend=local_server",
        f"backend.endpoint={url}",
        "backend.prefill=false",
        "backend.filters=[]",
        "backend.top_logprobs=0",
        f"backend.pace.start={flight}",
        f"backend.pace.most={flight}",
        f"run.root={folder}",
        f"run.cache_dir={folder / 'cache'}",
    ]


def ours(url: str, folder: Path, data: Path, flight: int) -> float:
    """Seconds of a whole run, composing and loading left out."""
    overrides = line(url, folder, data, flight)
    setup = api.compose(*overrides)
    backend = api.open_backend(setup)
    start = time.perf_counter()
    assert api.run(setup, backend).status == 0
    return time.perf_counter() - start


def example_messages(url: str, folder: Path, data: Path) -> list[dict[str, str]]:
    """What the run sends for its first example."""
    overrides = line(url, folder, data, 1)
    setup = api.compose(*overrides)
    point = api.point_of(setup, api.open_backend(setup))
    prompt = point.task.prompt(point.examples[0])
    return [{"role": m.role, "content": "".join(map(str, m.content))} for m in prompt.messages]


def fsync_ms(folder: Path) -> float:
    """Median milliseconds to append and flush a line of 4 KB."""
    times = []
    with (folder / "fsync").open("ab") as file:
        for _ in range(50):
            start = time.perf_counter()
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def measure(url: str, count: int, flight: int, rounds: int) -> None:
    """Alternate both and print requests per second."""
    rates: dict[str, list[float]] = {"bare": [], "run": []}
    used: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = folder / "clues.jsonl"
        rows = [{"id": f"c{i}", "clue": f"Silent {i}", "answer": "LISTEN"} for i in range(count)]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        messages = example_messages(url, folder, data)
        print(f"fsync of a line: {fsync_ms(folder):.2f} ms")
        for number in range(rounds):
            start, cpu = time.perf_counter(), time.process_time()
            asyncio.run(bare(url, count, flight, messages))
            rates["bare"].append(count / (time.perf_counter() - start))
            used["bare"] = 1000 * (time.process_time() - cpu) / count
            cpu = time.process_time()
            rates["run"].append(count / ours(url, folder / str(number), data, flight))
            used["run"] = 1000 * (time.process_time() - cpu) / count
            print({kind: round(found[-1], 1) for kind, found in rates.items()}, flush=True)
    print("ms of processor per request:", {kind: round(ms, 2) for kind, ms in used.items()})
    best = {kind: max(found) for kind, found in rates.items()}
    share = 100 * best["run"] / best["bare"]
    print(f"requests/s: bare {best['bare']:.0f}, run {best['run']:.0f}: {share:.0f} % of bare")


def main() -> None:
    """Start the server, measure, stop it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--flight", type=int, default=500)
    parser.add_argument("--latency", type=float, default=1.0)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--serve", action="store_true")
    given = parser.parse_args()
    if given.serve:
        asyncio.run(serve(given.latency))
        return
    command = [sys.executable, __file__, "--serve", "--latency", str(given.latency)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        try:
            measure(url, given.requests, given.flight, given.rounds)
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
