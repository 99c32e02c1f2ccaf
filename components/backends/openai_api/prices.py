"""What requests cost, from a table of prices per million tokens."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.spec import SpecError, require

MILLION = 1_000_000
FIELDS = ("input", "cached_input", "output", "batch_factor")


@dataclass(frozen=True, slots=True)
class Price:
    """USD per million tokens; `batch_factor` is what the Batch API charges of them."""

    input: float
    output: float
    cached_input: float | None = None
    batch_factor: float = 0.5

    def of(self, usage: Mapping[str, Any], batch: bool) -> float:
        """Cost of what was used.

        Some services count reasoning in the total alone, or beside the completion that it is larger
        than; it is paid like any other output.
        """
        cached = usage.get("cached_tokens") or 0
        cheap = self.input if self.cached_input is None else self.cached_input
        asked = max(0, (usage.get("prompt_tokens") or 0) - cached)
        beyond = (usage.get("total_tokens") or 0) - (usage.get("prompt_tokens") or 0)
        made, reasoning = (usage.get(f"{k}_tokens") or 0 for k in ("completion", "reasoning"))
        made = max(made + reasoning if reasoning > made else made, beyond)
        whole = (asked * self.input + cached * cheap + made * self.output) / MILLION
        return whole * (self.batch_factor if batch else 1.0)

    def at_most(self, prompt_tokens: int, cap: int, batch: bool) -> float:
        """Cost of a request that uses its whole cap."""
        return self.of({"prompt_tokens": prompt_tokens, "completion_tokens": cap}, batch)


def find(prices: Mapping[str, Any], model: str) -> Price | None:
    """The price of `model`: its own, else that of the longest name that it begins with and a dash.

    Services append dates to the names of models (`gpt-4o-2024-08-06`).

    Raises:
        SpecError: the entry has an unknown or missing field.
    """
    known = [n for n in prices if model == n or model.startswith((f"{n}-20", f"{n}:", f"{n}@"))]
    if not known:
        return None
    name = max(known, key=len)
    entry = prices[name]
    if not isinstance(entry, Mapping) or not {"input", "output"} <= set(entry) <= set(FIELDS):
        raise SpecError(
            f"backend.prices.{name} must hold input and output, and may hold cached_input and "
            f"batch_factor (USD per million tokens), got {entry!r}"
        )
    for field, value in entry.items():
        known_amount = isinstance(value, int | float) and 0 <= value < math.inf
        require(known_amount, f"backend.prices.{name}.{field}", "be a number, 0 or more", value)
    return Price(**entry)


@dataclass(slots=True)
class Tally:
    """Tokens and money of one attempt of a run."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float = 0.0
    unpriced: int = 0
    discarded: int = 0  # answers that were paid, or may have been, and could not be used

    def add(self, usage: Mapping[str, Any], cost: float | None) -> None:
        """Count one response."""
        self.requests += 1
        for name in ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens"):
            setattr(self, name, getattr(self, name) + int(usage.get(name) or 0))
        self.cost_usd += cost or 0.0
        self.unpriced += cost is None
