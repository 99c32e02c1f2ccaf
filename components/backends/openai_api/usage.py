"""What a service says that a response used, under one set of names."""

from collections.abc import Mapping
from typing import Any

MOST = 1e12  # no count and no price is larger


def normal_usage(usage: object) -> dict[str, Any]:
    """Usage under the names of chat completions; cached and reasoning tokens where reported.

    What is no number, negative or absurd is left out. The total is missing where it is not known.
    """
    told = _mapping(usage)
    prompt = _amount(told.get("prompt_tokens", told.get("input_tokens")))
    made = _amount(told.get("completion_tokens", told.get("output_tokens")))
    asked = _mapping(told.get("prompt_tokens_details") or told.get("input_tokens_details"))
    of_it = _mapping(told.get("completion_tokens_details") or told.get("output_tokens_details"))
    whole = _amount(told.get("total_tokens"))
    if not whole and prompt is not None and made is not None:
        whole = prompt + made
    found = {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": whole,
        "cached_tokens": _amount(asked.get("cached_tokens")),
        "reasoning_tokens": _amount(of_it.get("reasoning_tokens")),
        "cost": _cost(told),
    }
    return {name: value for name, value in found.items() if value is not None}


def _cost(told: Mapping[str, Any]) -> float | None:
    """USD that the service reports; with a key of one's own at the provider, what that charges."""
    cost = _amount(told.get("cost"), whole=False)
    upstream = _mapping(told.get("cost_details")).get("upstream_inference_cost")
    if cost is not None and told.get("is_byok") is True:
        cost += _amount(upstream, whole=False) or 0.0
    return cost


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _amount(value: object, whole: bool = True) -> int | float | None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < MOST:
        return None
    return int(value) if whole else value
