"""Requests to compare decoders with, and what decoders make of them."""

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from components.backends.hf.backend import HfBackend
from components.quantization.precision import Precision
from pipeline.protocols import Generation, Group, Message, Prompt, Request
from pipeline.spec import ModelSpec, Sampling

MIXED = [
    Sampling(temperature=0),
    Sampling(temperature=0.8, top_p=0.9),
    Sampling(temperature=1.3, top_p=1.0, top_k=40),
    Sampling(temperature=1.0, top_p=1.0, min_p=0.05),
    Sampling(temperature=0.7, top_p=0.95, repetition_penalty=1.3),
    Sampling(temperature=1.0, top_p=1.0),
]
WORDS = "the red bird of seven hills counts 3 apples and asks why rivers run to an old sea".split()


def requests(
    count: int, samplings: Sequence[Sampling], samples: int = 1, caps: tuple[int, int] = (1, 24)
) -> list[Request]:
    """`count` prompts of unequal length with `samples` requests each, caps and stops mixed."""
    rng = random.Random(5)
    made = []
    for number in range(count):
        prompt = Prompt((Message("user", (" ".join(rng.choices(WORDS, k=rng.randint(1, 60))),)),))
        for sample in range(samples):
            made.append(
                Request(
                    prompt=prompt,
                    stop=("e", "zz")[:1] if rng.random() < 0.3 else (),
                    cap=rng.randint(*caps),
                    sampling=samplings[len(made) % len(samplings)],
                    seed=rng.getrandbits(64),
                    trace_id=len(made),
                    group=Group(f"p{number}", sample, samples),
                )
            )
    return made


def backend(
    folder: Path, dtype: str = "float32", attention: str = "sdpa", **arguments: Any
) -> HfBackend:
    """A backend over a folder, on the CPU unless told otherwise."""
    model = ModelSpec(name="tiny", path=str(folder), attn_implementation=attention)
    settings = {"device": "cpu", "threads": 1, **arguments}
    return HfBackend(model, Precision(dtype=dtype), **settings)


def decode(
    made: HfBackend, asked: Iterable[Request], look: Callable[[HfBackend], Any] | None = None
) -> list[Generation]:
    """What the backend makes of all requests at once; `look` is called before it closes."""

    async def one(request: Request) -> Generation:
        try:
            return await made.generate(request)
        finally:
            made.release(request.trace_id)

    async def run() -> list[Generation]:
        async with made:
            rows = await asyncio.gather(*map(one, asked))
            if look is not None:
                look(made)
            return rows

    return asyncio.run(run())


def same(left: Generation, right: Generation) -> None:
    """The two rows hold the same ids, for the same reason; numbers agree but for rounding."""
    assert left.token_ids == right.token_ids
    assert (left.text, left.tail, left.finish_reason) == (
        right.text,
        right.tail,
        right.finish_reason,
    )
    assert left.ends == right.ends
    for name in ("entropies", "logprobs"):
        ours, theirs = getattr(left, name), getattr(right, name)
        assert torch.allclose(torch.tensor(ours), torch.tensor(theirs), atol=1e-4), name


def forward_entropies(model: Any, row: Generation) -> Tensor:
    """What the model's own forward gives when fed the same ids, float64 [ids]."""
    ids = torch.tensor([[*(row.prompt_ids or []), *row.token_ids]], device=model.device)
    with torch.inference_mode():
        logits = model(ids).logits[0, -len(row.token_ids) - 1 : -1].double()
    logs = logits.log_softmax(-1)
    return -(logs.exp() * logs).sum(-1).cpu()


def as_near_to_float64(
    rows: Sequence[Generation], own: Any, exact: Any, times: float = 1.3
) -> None:
    """The rows' entropies are as near to those of the float64 model as those of `own` are.

    Weights of tiny models are so wide that rounding alone moves an entropy by a tenth: what counts
    is that the decoder is no less exact than the model's own forward in the same type.
    """
    expected = torch.cat([forward_entropies(exact, row) for row in rows])
    theirs = torch.cat([forward_entropies(own, row) for row in rows])
    ours = torch.cat([torch.tensor(row.entropies, dtype=torch.float64) for row in rows])
    assert (ours - expected).abs().mean() < times * (theirs - expected).abs().mean()
    assert (ours - expected).abs().max() < 2 * times * (theirs - expected).abs().max()
