"""A backend that is entered once and asked by many tests, on an event loop in a thread."""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

from launch import api
from launch.config.setup import setup_of
from pipeline.protocols import Backend
from tests.fakes.configs import composed

Outcome = TypeVar("Outcome")
# SmolLM2 in vLLM's processor build: a small cache, and no compilation, which takes a minute.
VLLM = (
    "backend=vllm",
    "model=smollm2",
    "quantization=fp32",
    "backend.engine.enforce_eager=true",
    "backend.engine.max_model_len=512",
    "backend.engine.max_num_seqs=24",
    "+backend.engine.kv_cache_memory_bytes=536870912",
)


class Entered:
    """An entered backend."""

    def __init__(self, backend: Backend) -> None:
        """Enter it."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.backend = backend
        self.run(lambda entered: entered.__aenter__())

    def run(self, work: Callable[[Backend], Awaitable[Outcome]]) -> Outcome:
        """What `work` returns, given the backend."""

        async def call() -> Outcome:
            return await work(self.backend)

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    def close(self) -> None:
        """Leave it."""
        self.run(lambda entered: entered.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


def start_vllm() -> Entered:
    """vLLM, entered; takes half a minute."""
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", cores)  # else it leaves one core idle
    words = ("task=crossword", *VLLM)
    return Entered(api.open_backend(setup_of(composed(*words), words)))
