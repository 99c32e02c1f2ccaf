"""One request, attempted until it is answered or there is no point: time-outs and retries."""

import asyncio
import email.utils
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from openai import APIConnectionError, APIStatusError, OpenAIError
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_attempt,
)

from components.backends.openai_api.answers import BadAnswerError
from components.backends.openai_api.pace import Pace, duration
from pipeline.spec import require

T = TypeVar("T")
TRANSIENT = (408, 409, 429)
CONTEXT_STATUSES = (400, 413, 422)
CONTEXT_CODES = ("context_length_exceeded", "exceed_context_size_error")
CONTEXT_WORDS = re.compile(
    r"maximum context length|context (?:length|size|window).{0,40}exceed"
    r"|exceeds?.{0,40}context (?:length|size|window)|prompt is too long",
    re.IGNORECASE,
)
NO_MONEY = ("insufficient_quota", "billing_hard_limit_reached")


@dataclass(frozen=True, slots=True)
class Retry:
    """Time-outs and retries, in seconds. The n-th wait doubles from `backoff` to `longest_backoff`.

    `timeout` is for one attempt, `overall_timeout` for all of a request's attempts and waits.
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


class GatewayError(RuntimeError):
    """A request failed for good. The message holds no key.

    `status` is the HTTP status, None where none came; `parameter` and `code` are the service's.
    """

    def __init__(
        self, message: str, status: int | None, parameter: str | None = None, code: str = ""
    ) -> None:
        """Keep all four."""
        super().__init__(message)
        self.status, self.parameter, self.code = status, parameter, code

    @property
    def is_context_exceeded(self) -> bool:
        """Whether the service says that the prompt does not fit into the model's context."""
        about_the_cap = self.parameter not in (None, "messages", "prompt", "input")
        if self.status not in CONTEXT_STATUSES or about_the_cap:
            return False
        return self.code in CONTEXT_CODES or bool(CONTEXT_WORDS.search(str(self)))


@dataclass(slots=True)
class Failure:
    """What an attempt's exception amounts to."""

    status: int | None
    text: str
    headers: Mapping[str, str]
    parameter: str | None = None
    code: str = ""

    @property
    def transient(self) -> bool:
        """Whether another attempt may succeed."""
        if self.code in NO_MONEY:
            return False
        return self.status is None or self.status in TRANSIENT or self.status >= 500

    @property
    def retry_after(self) -> float | None:
        """Seconds that the service asks to wait."""
        milliseconds = duration(self.headers.get("retry-after-ms"))
        if milliseconds is not None:
            return milliseconds / 1000
        told = self.headers.get("retry-after")
        seconds = duration(told)
        if seconds is not None or not told:
            return seconds
        date = email.utils.parsedate_tz(told)
        return max(0.0, email.utils.mktime_tz(date) - time.time()) if date else None


def failure_of(error: BaseException) -> Failure:
    """Classify what the client raised."""
    if isinstance(error, APIStatusError):
        text = _message(error)
        headers = error.response.headers
        return Failure(error.status_code, text, headers, error.param, error.code or "")
    if isinstance(error, BadAnswerError):
        return Failure(error.status, str(error), {})
    if isinstance(error, TimeoutError):
        return Failure(None, "no answer within backend.retry.timeout", {})
    return Failure(None, f"{type(error).__name__}: {error}", {})


def _message(error: APIStatusError) -> str:
    """The service's words, whatever JSON they came in."""
    body = error.body
    if isinstance(body, Mapping):
        for name in ("message", "detail", "error"):
            if body.get(name):
                return f"HTTP {error.status_code}: {body[name]}"
    return f"HTTP {error.status_code}: {str(body or error.message)[:500]}"


ATTEMPTED = (OpenAIError, BadAnswerError, TimeoutError, OSError)


class Attempts:
    """Sends requests under a pace, again where that may help."""

    def __init__(self, retry: Retry, pace: Pace, hide: Callable[[str], str]) -> None:
        """`hide` takes keys out of a text."""
        self.retry, self.pace, self._hide = retry, pace, hide
        self.repeated = 0

    async def run(self, tokens: float, send: Callable[[], Awaitable[T]]) -> T:
        """The result of `send`, attempted as often as the settings allow.

        `tokens` estimates what one attempt takes of the token cap.

        Raises:
            GatewayError: it failed for good.
        """
        try:
            async with asyncio.timeout(self.retry.overall_timeout):
                return await self._until_answered(tokens, send)
        except ATTEMPTED as error:
            failure = failure_of(error)
            text = self._hide(failure.text)
            raise GatewayError(text, failure.status, failure.parameter, failure.code) from None

    async def _until_answered(self, tokens: float, send: Callable[[], Awaitable[T]]) -> T:
        """The first attempt is made plainly: most need no other, and tenacity takes its time."""
        try:
            return await self._attempt(tokens, send)
        except ATTEMPTED as error:
            if not self.retry.retries or not _worth_repeating(error):
                raise
            await self._sleep(self._pause(error, 1))
        retrying = AsyncRetrying(
            stop=stop_after_attempt(self.retry.retries),
            wait=lambda state: self._pause(_error_of(state), state.attempt_number + 1),
            retry=retry_if_exception(_worth_repeating),
            sleep=self._sleep,
            reraise=True,
        )
        return await retrying(self._attempt, tokens, send)

    async def _attempt(self, tokens: float, send: Callable[[], Awaitable[T]]) -> T:
        async with self.pace.admitted(tokens):
            try:
                async with asyncio.timeout(self.retry.timeout):
                    return await send()
            except APIStatusError as error:
                failure = failure_of(error)
                if failure.status == 429:
                    self.pace.throttled(failure.retry_after, failure.headers)
                raise

    def _pause(self, error: BaseException | None, number: int) -> float:
        """Seconds after attempt `number`: what the service asks, else longer every time."""
        told = failure_of(error).retry_after if error else None
        if told is not None:
            return told
        longer = self.retry.backoff * 2.0 ** min(number - 1, 30)
        return min(self.retry.longest_backoff, longer) * random.uniform(1.0, 1.5)

    async def _sleep(self, seconds: float) -> None:
        self.repeated += 1
        self.pace.asleep += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self.pace.asleep -= 1


def _worth_repeating(error: BaseException) -> bool:
    known = isinstance(error, ATTEMPTED)
    return known and (isinstance(error, APIConnectionError) or failure_of(error).transient)


def _error_of(state: RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome else None
