"""A backend without a model, for dry runs, sweeps and tests of the pipeline."""

import asyncio
import math
import random
from typing import Any

from pipeline.protocols import Backend, Capabilities, FinishReason, Generation, Request, spelled
from pipeline.spec import ModelSpec, require


class Echo(Backend):
    """Answers with words of the question in an order drawn from the request's seed.

    Tokens are UTF-8 bytes, so ids continue exactly; entropies and logprobs are made up from the
    same seed. `seconds_per_token` slows it down, for tests of interruption.
    """

    name = "echo"
    capabilities = Capabilities(
        continues_ids=True,
        assistant_prefill=True,
        entropy=True,
        logprobs=True,
        streaming=True,
        runs_model=False,
    )

    def __init__(
        self, model: ModelSpec, capacity: int = 16, seconds_per_token: float = 0.0
    ) -> None:
        """Keep the settings; of the model only `model.step` is used, so that sweeps have steps."""
        require(capacity >= 1, "backend.capacity", "be 1 or more", capacity)
        pause = seconds_per_token
        rule = "be 0 or more, and finite"
        require(0 <= pause < math.inf, "backend.seconds_per_token", rule, pause)
        self.capacity = capacity
        self.seconds_per_token = seconds_per_token
        self._step = model.step if isinstance(model.step, int) else 0
        self._tokens = 0

    def identity(self) -> dict[str, Any]:
        """Nothing but its name: there is no model."""
        return {"backend": self.name, "model.step": self._step}

    def describe(self) -> dict[str, Any]:
        """Counters."""
        return {"device": "none", "generated_tokens": self._tokens}

    async def generate(self, request: Request) -> Generation:
        """Words of the first user turn, up to the cap, then the first stop string if it fits."""
        draw = random.Random(request.seed)
        stop = request.stop[0] if request.stop else ""
        text, reason = _sentence(request, draw, stop)
        ids = list((text + (stop if reason == "stop_token" else "")).encode())
        await self._speak(request, text, len(ids))
        entropies = [round(draw.random() * 2, 6) for _ in ids]
        whole = bytes(ids)
        generation = Generation(
            token_ids=ids,
            text=text,
            tail=stop if reason == "stop_token" else "",
            finish_reason=reason,
            prompt_tokens=len(self.preview(request.prompt).encode()),
            entropies=entropies,
            logprobs=[-value for value in entropies],
            ends=[len(whole[: i + 1].decode(errors="ignore")) for i in range(len(whole))],
        )
        self._tokens += len(ids)
        return generation

    async def _speak(self, request: Request, text: str, num_tokens: int) -> None:
        """Take the time of the tokens, handing on one character after another."""
        if request.on_token is None:
            await asyncio.sleep(self.seconds_per_token * num_tokens)
            return
        for character in text:
            await asyncio.sleep(self.seconds_per_token * len(character.encode()))
            request.on_token(character)
        await asyncio.sleep(self.seconds_per_token * (num_tokens - len(text.encode())))


def _sentence(request: Request, draw: random.Random, stop: str) -> tuple[str, FinishReason]:
    said = [m for m in request.prompt.messages if m.role == "user"]
    words = spelled(said[0].content).split() if said else ["nothing"]
    wanted = draw.randint(1, 3) if request.cap <= 100 else draw.randint(5, 60)
    text = " ".join(draw.choice(words) for _ in range(wanted))
    if draw.random() < 0.1:
        text = f"{text}\nWait, {text}"
    room = request.cap - len(stop.encode())
    if len(text.encode()) <= room:
        return text, "stop_token" if stop else "eos"
    return text.encode()[: request.cap].decode(errors="ignore"), "max_new_tokens"
