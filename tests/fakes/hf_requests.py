"""Requests to an `HfBackend`, for the tests of backends."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from components.backends.hf.backend import HfBackend
from components.quantization.precision import Precision
from pipeline.protocols import Generation, Group, Message, Prompt, Request
from pipeline.spec import ModelSpec, Sampling

QUESTIONS = (
    "What is 2+3?",
    "Explain gravity in one sentence.",
    "Name three rivers in Europe and say, for each of them, where it ends.",
    "Hi",
)

HERE = {"device": "cpu", "threads": 1, "decoder": "generate"}


def backend(folder: Path, dtype: str | None = "float32", **fields: Any) -> HfBackend:
    """A backend on the CPU, with the reference decoder unless `decoder` says otherwise.

    Keywords that `ModelSpec` knows go there, others to the backend.
    """
    spec = {name: fields.pop(name) for name in ModelSpec.__slots__ if name in fields}
    model = ModelSpec(**({"name": "m", "path": str(folder)} | spec))
    return HfBackend(model, Precision(dtype), **(HERE | fields))


def prompt(text: str, *prefill: str) -> Prompt:
    return Prompt((Message("user", (text,)),), prefill)


def request(number: int = 0, text: str | None = None, **fields: Any) -> Request:
    """A request of its own seed and trace; keywords that `Sampling` knows go there."""
    drawn = {name: fields.pop(name) for name in Sampling.__slots__ if name in fields}
    base: dict[str, Any] = {
        "prompt": prompt(QUESTIONS[number % 4] if text is None else text),
        "stop": (),
        "cap": 12,
        "sampling": Sampling(**({"temperature": 0.8, "top_p": 1.0} | drawn)),
        "seed": number * 0x9E3779B97F4A7C15 % 2**64,
        "trace_id": number,
        "group": Group(str(number), 0, 1),
    }
    return Request(**(base | fields))


async def ask(made: HfBackend, requests: Sequence[Request]) -> list[Generation]:
    """All at once, in the order given."""
    async with made:
        return await asyncio.gather(*(made.generate(each) for each in requests))


def answers(made: HfBackend, requests: Sequence[Request]) -> list[Generation]:
    """`ask` from outside of an event loop."""
    return asyncio.run(ask(made, requests))
