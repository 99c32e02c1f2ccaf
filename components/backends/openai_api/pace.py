"""How many requests are under way: a level that finds itself, and limits that a service sets."""

import asyncio
import math
import re
import statistics
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

from pipeline.protocols import StoppedError
from pipeline.spec import require

WINDOW = 64  # latencies that speak for the present
REFUSALS = 100  # responses of which the share of 429s is looked at
REFUSED_SHARE = 0.08  # above it the level is too high; a stray 429 is the service's own trouble
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the pace. Caps are per minute; null: none.

    The level starts at `start` requests, grows to `most` while the median latency stays below
    `tolerance` times the best one seen, and shrinks to `shrink` times itself when more than a few
    in a hundred responses are 429.
    """

    start: int = 16
    most: int = 512
    tolerance: float = 3.0
    shrink: float = 0.7
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None

    def __post_init__(self) -> None:
        """Check ranges."""
        require(1 <= self.start <= self.most, "backend.pace.start", "lie in 1..most", self.start)
        require(self.tolerance > 1, "backend.pace.tolerance", "be above 1", self.tolerance)
        require(0 < self.shrink < 1, "backend.pace.shrink", "lie in (0, 1)", self.shrink)
        for name in ("requests_per_minute", "tokens_per_minute"):
            cap = getattr(self, name)
            require(cap is None or cap > 0, f"backend.pace.{name}", "be null or above 0", cap)


class Meter:
    """Lets units through at a rate per minute, up to a second's worth at once."""

    def __init__(self, per_minute: float | None) -> None:
        self._seconds = 60.0 / per_minute if per_minute else 0.0
        self._free_at = 0.0

    def take(self, units: float, now: float) -> float:
        """Book `units`; the seconds to wait before using them."""
        if not self._seconds:
            return 0.0
        wait = max(0.0, self._free_at - now)
        self._free_at = max(self._free_at, now - 1.0) + units * self._seconds
        return wait

    def correct(self, units: float) -> None:
        """Book more, or give back where negative."""
        self._free_at += units * self._seconds


class Pace:
    """Admits requests: at most `level` at once, none before `not_before`, within the caps."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is under way. `clock` tells the time in seconds."""
        self.limits = limits
        self._clock = clock
        self.level = float(limits.start)
        self.active = 0
        self.asleep = 0
        self.shrunk = 0
        self.not_before = 0.0
        self._stopped = asyncio.Event()
        self._best: float | None = None
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._last_cut = 0.0
        self._ceiling = math.inf  # the level at the last cut
        self._rounds_above = 0.0  # rounds since the level came back to it
        self._refused: deque[bool] = deque(maxlen=REFUSALS)
        self._requests = Meter(limits.requests_per_minute)
        self._tokens = Meter(limits.tokens_per_minute)

    def start(self) -> None:
        """Let requests in."""
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Let nobody in any more: whoever waits gets a StoppedError."""
        self._stopped.set()
        for place in self._waiting:
            if not place.done():
                place.set_exception(StoppedError())
        self._waiting.clear()

    async def sleep(self, seconds: float) -> None:
        """Wait so long. Raises StoppedError once nobody is let in any more."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
        if self._stopped.is_set():
            raise StoppedError

    def bound(self, most: int) -> int:
        """Let the level never pass `most`."""
        self.limits = replace(self.limits, most=most, start=min(most, self.limits.start))
        self.level = min(self.level, float(most))
        return most

    @property
    def wanted(self) -> int:
        """How many askers keep the level busy while some wait, sleep or write."""
        return int(self.level * 1.25) + 8 + self.asleep

    @asynccontextmanager
    async def admitted(self, tokens: float) -> AsyncIterator[None]:
        """Wait for a place, then hold it. `tokens` is an estimate of what the request takes."""
        await self._enter()
        try:
            await self._wait_for_time(tokens)
            yield
        finally:
            self.active -= 1
            self._wake()

    async def _enter(self) -> None:
        if self._stopped.is_set():
            raise StoppedError
        if self.active < int(self.level) and not self._waiting:
            self.active += 1
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place  # whoever wakes it has counted it
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.active -= 1
                self._wake()
            raise

    def _wake(self) -> None:
        while self._waiting and self.active < int(self.level):
            place = self._waiting.popleft()
            if not place.done():
                self.active += 1
                place.set_result(None)

    async def _wait_for_time(self, tokens: float) -> None:
        now = self._clock()
        wait = max(self._requests.take(1.0, now), self._tokens.take(tokens, now))
        while (wait := max(wait, self.not_before - self._clock())) > 0:
            await self.sleep(wait)
            wait = 0.0

    def succeeded(self, seconds: float, surplus: float, headers: Mapping[str, str]) -> None:
        """A request was answered: grow while latency holds.

        `surplus` is what it took beyond the estimate, in tokens.
        """
        self._recent.append(seconds)
        self._refused.append(False)
        self._tokens.correct(surplus)
        if len(self._recent) >= 4:
            median = statistics.median(self._recent)
            self._best = median if self._best is None else min(self._best, median)
            if median <= self.limits.tolerance * self._best and self._waiting_or_full():
                self.level = min(float(self.limits.most), self.level + self._step())
        self._heed(headers)
        self._wake()

    def _waiting_or_full(self) -> bool:
        return bool(self._waiting) or self.active + 1 >= int(self.level)

    def _step(self) -> float:
        """What one answer adds to the level.

        It doubles per round (as many answers as the level) until the level of the last cut. From
        there it gains one in the first round, and twice as many a round after every four.
        """
        if self.level < self._ceiling:
            return min(1.0, self._ceiling - self.level)
        self._rounds_above += 1.0 / self.level
        return float(min(1.0, 2.0 ** (self._rounds_above / 4) / self.level))

    def throttled(self, retry_after: float | None, headers: Mapping[str, str]) -> None:
        """A 429: wait as told; shrink if it is one of several.

        One shrinking counts for all that were under way before it.
        """
        now = self._clock()
        latency = statistics.median(self._recent) if self._recent else 1.0
        self._refused.append(True)
        num_refused = sum(self._refused)
        several = num_refused > max(1.0, REFUSED_SHARE * len(self._refused))
        if several and now - self._last_cut >= min(latency, 60.0):
            again = self.level < 1.2 * self._ceiling < math.inf  # the same limit, met once more
            self._rounds_above = 0.0
            shrunk = max(1.0, self.level * self.limits.shrink)
            self._ceiling = shrunk if again else self.level
            self.level = shrunk
            self._last_cut = now
            self.shrunk += 1
            self._refused.clear()
        if retry_after is not None and several:
            self.not_before = max(self.not_before, now + retry_after)
        self._heed(headers)

    def one_at_a_time(self, seconds: float) -> None:
        """Nobody is answered: the next request goes alone, after `seconds`."""
        self._ceiling = max(self._ceiling, self.level)  # to which it doubles once it is over
        self.level = 1.0
        self.not_before = max(self.not_before, self._clock() + seconds)

    def _heed(self, headers: Mapping[str, str]) -> None:
        """Wait for the reset that rate-limit headers announce once nothing remains."""
        for kind in ("requests", "tokens"):
            left = headers.get(f"x-ratelimit-remaining-{kind}")
            reset = duration(headers.get(f"x-ratelimit-reset-{kind}"))
            if left is not None and reset is not None and left.strip() == "0":
                self.not_before = max(self.not_before, self._clock() + reset)


def duration(text: str | None) -> float | None:
    """Seconds in `1m30s`, `20ms` or a plain number; None where there is none, or an absurd one."""
    if not text:
        return None
    parts = DURATION.findall(text)
    if parts:
        number = sum(float(count) * UNITS[unit] for count, unit in parts)
    else:
        try:
            number = float(text)
        except ValueError:
            return None
    return number if 0 <= number < 1e6 else None
