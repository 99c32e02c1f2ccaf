"""One request, attempted until it is answered or there is no point: time-outs and retries."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from components.backends.openai_api.failures import (
    ATTEMPTED,
    Failure,
    GatewayError,
    failure_of,
    is_worth_repeating,
)
from components.backends.openai_api.outage import Outage
from components.backends.openai_api.pace import Pace
from components.backends.openai_api.retries import Retry

T = TypeVar("T")
NOTICE_SECONDS = 10.0  # between two lines about waiting
_LOG = logging.getLogger(__name__)


class Notices:
    """Says what requests wait for, at most once in `NOTICE_SECONDS`."""

    def __init__(self, service: str, pace: Pace) -> None:
        """Nothing was said yet."""
        self._service, self._pace = service, pace
        self._last: float | None = None

    def waiting(self, failure: Failure, seconds: float) -> None:
        """A request waits `seconds` before it is sent again, because of `failure`."""
        now = time.monotonic()
        if self._last is not None and now - self._last < NOTICE_SECONDS:
            return
        self._last = now
        _LOG.warning(
            "%s: %s; asked again in %.1f s (%d waiting, %d under way at most)",
            self._service,
            failure.shown,
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
        self._outage = Outage(service, retry, pace)

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
            async with self._outage.within(self.retry.overall_timeout):
                return await self._until_answered(tokens, send, renew, failures)
        except ATTEMPTED as error:
            raise self._final(error, failures) from None

    def _final(self, error: BaseException, failures: list[Failure]) -> GatewayError:
        failure = self._failure_of(error)
        text, again = failure.text, is_worth_repeating(error)
        if not failures or failures[-1].text != text:  # the outer time-out, not an attempt's
            limit = f"backend.retry.overall_timeout of {self.retry.overall_timeout:g} s is over"
            last = f"; the last attempt: {failures[-1].text}" if failures else ""
            failure, text = (failures or [failure])[-1], f"{limit}{last}"
        return GatewayError(text, failure.status, failure.parameter, failure.code, transient=again)

    async def _until_answered(
        self,
        tokens: float,
        send: Callable[[], Awaitable[T]],
        renew: Callable[[], Awaitable[None]] | None,
        failures: list[Failure],
    ) -> T:
        series = _Series()
        while True:
            try:
                return await self._attempt(tokens, send, series)
            except ATTEMPTED as error:
                failure = self._failure_of(error)
                failures.append(failure)
                series.add(failure)
                if not is_worth_repeating(error):
                    raise
                if failure.tells_of_outage:
                    self._outage.failed(series, failure)
                if series.num_failed > self.retry.retries:
                    if not self._outage.excuses(series.since, series.sent, failure):
                        raise
                    series.restart()
                pause = self.retry.pause(series.number(failure), failure.retry_after)
                if pause > self.retry.overall_timeout:
                    raise
            await self._sleep(failure, pause)
            if renew is not None:
                await renew()

    async def _attempt(
        self, tokens: float, send: Callable[[], Awaitable[T]], series: "_Series"
    ) -> T:
        async with self.pace.admitted(tokens):
            series.sent = time.monotonic()
            try:
                async with asyncio.timeout(self.retry.timeout):
                    answer = await send()
            except ATTEMPTED as error:
                failure = self._failure_of(error)
                if failure.is_rate_limit:
                    self.pace.throttled(failure.retry_after, failure.headers)
                if not failure.tells_of_outage:
                    self._outage.answered()
                raise
        self._outage.answered()
        return answer

    def _failure_of(self, error: BaseException) -> Failure:
        failure = failure_of(error, self.retry.timeout)
        failure.text = self._hide(failure.text)
        return failure

    async def _sleep(self, failure: Failure, seconds: float) -> None:
        self.repeated += 1
        self.pace.asleep += 1
        self._notices.waiting(failure, seconds)
        try:
            await self.pace.sleep(seconds)
        finally:
            self.pace.asleep -= 1


class _Series:
    """Failures of one request in a row.

    `since` is the time of the last but one, `sent` when the last attempt began, in seconds.
    """

    def __init__(self) -> None:
        self.num_limited = self.num_failed = 0
        self.since = self._last = self.sent = 0.0

    def restart(self) -> None:
        """Count failures anew."""
        self.num_failed = 0

    def add(self, failure: Failure) -> None:
        if failure.is_rate_limit:
            self.num_limited += 1
        else:
            self.num_failed += 1
            self.since, self._last = self._last, time.monotonic()

    def number(self, failure: Failure) -> int:
        """How many of its kind there were, this one included; 1 or more."""
        return max(1, self.num_limited if failure.is_rate_limit else self.num_failed)
