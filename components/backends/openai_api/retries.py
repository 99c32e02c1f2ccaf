"""One request, attempted until it is answered or there is no point: time-outs and retries."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from components.backends.openai_api.failures import (
    ATTEMPTED,
    Failure,
    GatewayError,
    failure_of,
    is_worth_repeating,
)
from components.backends.openai_api.pace import Pace
from pipeline.spec import require

T = TypeVar("T")
NOTICE_SECONDS = 10.0  # between two lines about waiting
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Retry:
    """Time-outs and retries, in seconds. The n-th wait doubles from `backoff` to `longest_backoff`.

    `timeout` is for one attempt, `overall_timeout` for all of a request's attempts and waits. A
    rate limit (429) is waited for and is none of the `retries`.
    """

    retries: int = 5
    backoff: float = 2.0
    longest_backoff: float = 60.0
    timeout: float = 120.0
    overall_timeout: float = 3600.0

    def __post_init__(self) -> None:
        """Check ranges."""
        require(self.retries >= 0, "backend.retry.retries", "be 0 or more", self.retries)
        for name in ("backoff", "longest_backoff", "timeout", "overall_timeout"):
            value = getattr(self, name)
            require(value > 0, f"backend.retry.{name}", "be above 0", value)


class Notices:
    """Says what requests wait for, at most once in `NOTICE_SECONDS`."""

    def __init__(self, service: str, pace: Pace) -> None:
        """Nothing was said yet."""
        self._service, self._pace = service, pace
        self._last: float | None = None

    def waiting(self, reason: str, seconds: float) -> None:
        """A request waits `seconds` before it is sent again, because of `reason`."""
        now = time.monotonic()
        if self._last is not None and now - self._last < NOTICE_SECONDS:
            return
        self._last = now
        _LOG.warning(
            "%s: %s; asked again in %.1f s (%d waiting, %d under way at most)",
            self._service,
            " ".join(reason.split())[:300],
            seconds,
            self._pace.asleep,
            int(self._pace.level),
        )


class Attempts:
    """Sends requests under a pace, again where that may help."""

    def __init__(
        self, retry: Retry, pace: Pace, hide: Callable[[str], str], service: str = "service"
    ) -> None:
        """`hide` takes keys out of a text; `service` is named in log lines."""
        self.retry, self.pace, self._hide = retry, pace, hide
        self.repeated = 0
        self._notices = Notices(service, pace)

    async def run(
        self,
        tokens: float,
        send: Callable[[], Awaitable[T]],
        renew: Callable[[], Awaitable[None]] | None = None,
    ) -> T:
        """The result of `send`, attempted as often as the settings allow.

        `tokens` estimates what one attempt takes of the token cap; `renew` is awaited before every
        attempt but the first.

        Raises:
            GatewayError: it failed for good.
        """
        failures: list[Failure] = []
        try:
            async with asyncio.timeout(self.retry.overall_timeout):
                return await self._until_answered(tokens, send, renew, failures)
        except ATTEMPTED as error:
            raise self._final(error, failures) from None

    def _final(self, error: BaseException, failures: list[Failure]) -> GatewayError:
        failure = failure_of(error, self.retry.timeout)
        text, again = failure.text, is_worth_repeating(error)
        if not failures or failures[-1].text != text:  # the outer time-out, not an attempt's
            limit = f"backend.retry.overall_timeout of {self.retry.overall_timeout:g} s is over"
            last = f"; the last attempt: {failures[-1].text}" if failures else ""
            failure, text = (failures or [failure])[-1], f"{limit}{last}"
        return GatewayError(
            self._hide(text), failure.status, failure.parameter, failure.code, transient=again
        )

    async def _until_answered(
        self,
        tokens: float,
        send: Callable[[], Awaitable[T]],
        renew: Callable[[], Awaitable[None]] | None,
        failures: list[Failure],
    ) -> T:
        num_limited = num_failed = 0
        while True:
            try:
                return await self._attempt(tokens, send)
            except ATTEMPTED as error:
                failure = failure_of(error, self.retry.timeout)
                failures.append(failure)
                num_limited += failure.is_rate_limit
                num_failed += not failure.is_rate_limit
                if not is_worth_repeating(error) or num_failed > self.retry.retries:
                    raise
                pause = self._pause(failure, num_limited if failure.is_rate_limit else num_failed)
                if pause > self.retry.overall_timeout:
                    raise
            await self._sleep(failure, pause)
            if renew is not None:
                await renew()

    async def _attempt(self, tokens: float, send: Callable[[], Awaitable[T]]) -> T:
        async with self.pace.admitted(tokens):
            try:
                async with asyncio.timeout(self.retry.timeout):
                    return await send()
            except ATTEMPTED as error:
                failure = failure_of(error)
                if failure.is_rate_limit:
                    self.pace.throttled(failure.retry_after, failure.headers)
                raise

    def _pause(self, failure: Failure, number: int) -> float:
        """Seconds after the `number`-th failure of a kind.

        It doubles every time, is never below what the service asks, and is spread at random, so
        that those who wait do not all come back at once.
        """
        longer = self.retry.backoff * 2.0 ** min(number - 1, 30)
        least = max(failure.retry_after or 0.0, min(self.retry.longest_backoff, longer))
        return least * random.uniform(1.0, 1.5)

    async def _sleep(self, failure: Failure, seconds: float) -> None:
        self.repeated += 1
        self.pace.asleep += 1
        self._notices.waiting(self._hide(failure.text), seconds)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.pace.asleep -= 1
