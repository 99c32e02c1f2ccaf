"""Entropy from the k likeliest tokens: a number that the exact entropy cannot be below."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from components.backends.openai_api.answers import Said
from pipeline.run.backend_columns import BOUNDS


def lower_bound(top: Sequence[float]) -> float:
    """Nats that a distribution has at least, whose largest log probabilities are `top`.

    The rest of the mass r lies on tokens of which none is likelier than the last of `top` nor than
    r itself, so each of them is at least that surprising.
    """
    probabilities = [math.exp(value) for value in top]
    rest = max(0.0, 1.0 - math.fsum(probabilities))
    known = -math.fsum(p * value for p, value in zip(probabilities, top, strict=True) if p > 0)
    ceiling = min([rest, *probabilities])
    beyond = -rest * math.log(ceiling) if ceiling > 0 else 0.0
    return known + beyond


def probability_fields(said: Said, asked: int) -> tuple[list[float] | None, dict[str, Any]]:
    """Logprobs of the chosen tokens, and the columns that stand in for the exact entropy.

    `asked` is how many likeliest tokens were asked for.
    """
    if not asked:
        return None, {"entropy_missing": "no probabilities were asked for"}
    chosen = [token["logprob"] for token in said.tokens or ()]
    if not chosen or not all(isinstance(value, int | float) for value in chosen):
        return None, {"entropy_missing": "the service returned no probabilities"}
    tops = [_finite(token) for token in said.tokens or ()]
    if not all(tops):
        why = "the service returned the chosen tokens' probabilities only"
        return chosen, {"entropy_missing": why}
    k = min(len(top) for top in tops)
    why = "the service returned the likeliest tokens only: see entropy_lower_bound"
    bounds = [round(lower_bound(top), 6) for top in tops]
    return chosen, {"entropy_missing": why, "entropy_top_k": k, BOUNDS: bounds}


def _finite(token: Mapping[str, Any]) -> list[float]:
    """The top log probabilities, largest first; services write impossible as -9999 or -inf."""
    values = [value for value in token["top"] if isinstance(value, int | float)]
    return sorted((value for value in values if -1000 < value <= 0.01), reverse=True)
