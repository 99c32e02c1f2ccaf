"""Settings of time-outs and retries."""

import math
import random
from dataclasses import dataclass

from pipeline.spec import require


@dataclass(frozen=True, slots=True)
class Retry:
    """Time-outs and retries, in seconds. The n-th wait doubles from `backoff` to `longest_backoff`.

    `timeout` is for one attempt, `overall_timeout` for all of a request's attempts and waits. A
    rate limit (429) is waited for and is none of the `retries`. A service that answers nobody is
    waited for, for `outage_seconds` since its last answer, which `overall_timeout` does not count;
    0: its requests fail like any other.
    """

    retries: int = 5
    backoff: float = 2.0
    longest_backoff: float = 60.0
    timeout: float = 120.0
    overall_timeout: float = 3600.0
    outage_seconds: float = 1800.0

    def __post_init__(self) -> None:
        """Check ranges."""
        require(self.retries >= 0, "backend.retry.retries", "be 0 or more", self.retries)
        for name in ("backoff", "longest_backoff", "timeout", "overall_timeout"):
            value = getattr(self, name)
            require(value > 0, f"backend.retry.{name}", "be above 0", value)
        rule, outage = "be 0 or more, and finite", self.outage_seconds
        require(0 <= outage < math.inf, "backend.retry.outage_seconds", rule, outage)

    def pause(self, number: int, asked: float | None = None) -> float:
        """Seconds after the `number`-th failure of a kind.

        It doubles every time, is never below what the service `asked`, and is spread at random, so
        that those who wait do not all come back at once.
        """
        longer = self.backoff * 2.0 ** min(number - 1, 30)
        return max(asked or 0.0, min(self.longest_backoff, longer)) * random.uniform(1.0, 1.5)
