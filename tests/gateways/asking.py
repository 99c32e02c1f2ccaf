"""One backend, made as conf/ makes it, and asked directly."""

import asyncio
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from components.backends.openai_api.backend import OpenAiBackend
from launch.config.compose import build_backend, to_spec
from pipeline.protocols import Generation, Group, Message, Prompt, Request
from pipeline.spec import Sampling
from tests.fakes.configs import composed

KEY = "sk-test-0123456789-secret"
QUICK = ("backend.retry.backoff=0.01", "backend.retry.longest_backoff=0.05")


GROUPS = ("task", "backend", "model", "sampling", "cue", "quantization")


@lru_cache
def _composed(choices: tuple[str, ...]) -> DictConfig:
    return composed(*choices)


def configured(*overrides: str) -> DictConfig:
    """What a command line composes. Groups are composed once and values set: composing is slow."""
    pairs = [override.lstrip("+").partition("=") for override in overrides]
    choices = {key: f"{key}={value}" for key, _, value in pairs if key in GROUPS}
    config = _composed(tuple(choices.values())).copy()
    for key, _, value in pairs:
        if key not in GROUPS:
            OmegaConf.update(config, key, yaml.safe_load(value), force_add=True)
    return config


def backend(url: str, cache: Path, *overrides: str, kind: str = "local_server") -> OpenAiBackend:
    """The backend that a command line makes, pointed at `url`."""
    fixed = (f"backend.connection.url={url}", "backend.deployment=m", f"run.cache_dir={cache}")
    line = ("task=crossword", f"backend={kind}", *fixed, "backend.prefill=no", *QUICK, *overrides)
    made = build_backend(to_spec(configured(*line)))
    assert isinstance(made, OpenAiBackend)
    return made


def request(text: str = "hello", **changes: Any) -> Request:
    """A request with one user message."""
    fields: dict[str, Any] = {
        "prompt": Prompt((Message("user", (text,)),)),
        "stop": ("</answer>",),
        "cap": 50,
        "sampling": Sampling(),
        "seed": 5,
        "trace_id": 0,
        "group": Group(text, 0, 1),
    }
    return Request(**fields | changes)


def ask(made: OpenAiBackend, *requests: Request) -> list[Generation | BaseException]:
    """What the backend makes of requests sent at once; errors stand in their place."""

    async def all_of_them() -> list[Generation | BaseException]:
        async with made:
            work = (made.generate(one) for one in requests)
            return await asyncio.gather(*work, return_exceptions=True)

    return asyncio.run(all_of_them())


def answer(made: OpenAiBackend, asked: Request | None = None) -> Generation:
    """The one generation; an error is raised."""
    (found,) = ask(made, asked or request())
    if isinstance(found, BaseException):
        raise found
    return found
