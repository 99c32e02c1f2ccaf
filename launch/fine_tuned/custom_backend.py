"""A backend whose texts a function of the user's makes, from the prompt as the model reads it."""

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

from pipeline.protocols import FILTERS, STRATEGIES, Backend, Capabilities, Generation, Request
from pipeline.spec import digest


class CustomBackend(Backend):
    """Asks a function one prompt at a time, in a thread; prompts are those of another backend."""

    name = "custom"
    capabilities = Capabilities(filters=(*FILTERS, *STRATEGIES))  # the function's own affair
    capacity = 2

    def __init__(self, inner: Backend, generate: Callable[[str], str]) -> None:
        """`inner` is not entered: whatever `generate` needs is loaded by its owner."""
        self._inner = inner
        self._generate = generate
        self._lock = asyncio.Lock()
        self.quantization = inner.quantization

    def identity(self) -> dict[str, Any]:
        """The model's, and the function by its text, so that other text makes other rows."""
        function = self._generate
        try:
            source = inspect.getsource(function)
        except OSError:  # typed into an interpreter
            source = function.__qualname__
        return self._inner.identity() | {"backend": self.name, "custom": digest(source)[:16]}

    async def generate(self, request: Request) -> Generation:
        """The function's text, up to the first stop string."""
        prompt = self._inner.preview(request.prompt)
        async with self._lock:
            started = time.perf_counter()
            text = await asyncio.to_thread(self._generate, prompt)
            seconds = time.perf_counter() - started
        if not isinstance(text, str):
            raise TypeError(f"custom_generate must return text, got {type(text).__name__}")
        found = [at for stop in request.stop if (at := text.find(stop)) >= 0]
        reason: Any = "stop_token" if found else "other"
        return Generation([], text[: min(found, default=None)], reason, seconds=seconds)
