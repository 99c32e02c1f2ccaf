"""Whether the logits processor measures what it should, tried on the running engine."""

import math
from typing import Any

from components.backends.vllm_engine.engine import Engine
from components.backends.vllm_engine.requests import sampling_fields
from pipeline.spec import Sampling

_TOKENS = 3
_NEAR = 1e-3  # nats


async def wrong_measures(engine: Engine) -> str | None:
    """What is wrong with the processor's entropies; None if nothing is.

    A few tokens are drawn with vLLM's own logprobs of the whole vocabulary, whose entropies the
    processor's must be.
    """
    fields: dict[str, Any] = sampling_fields(Sampling(temperature=0.0), (), _TOKENS, seed=0)
    key, expected = engine.key(), []
    async for _, logprobs in engine.stream([0, 1, 2], {**fields, "logprobs": -1}, key, 0, True):
        expected += [_entropy(each) for each in logprobs]
    measured = await engine.entropies(key)
    if len(measured) < len(expected):
        return f"{len(measured)} of {len(expected)} tokens were measured"
    pairs = list(zip(measured, expected, strict=False))
    if len(expected) == _TOKENS and all(m is not None and abs(m - e) < _NEAR for m, e in pairs):
        return None
    return f"entropies of {_TOKENS} tokens were {measured}, and by vLLM's own logprobs {expected}"


def _entropy(logprobs: Any) -> float:
    """Nats, of vLLM's logprobs of one token, by id."""
    values = [each.logprob for each in logprobs.values()]
    return -math.fsum(math.exp(value) * value for value in values if value > -math.inf)
