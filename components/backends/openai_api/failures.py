"""What went wrong with a request: the service's refusal, a broken answer, or the connection."""

import email.utils
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import httpx2
from openai import APIConnectionError, APIStatusError, OpenAIError

from components.backends.openai_api.answers import BadAnswerError, told
from components.backends.openai_api.pace import duration
from pipeline.protocols import RequestFailedError

TRANSIENT = (408, 409, 429)
CONTEXT_STATUSES = (400, 413, 422)
CONTEXT_CODES = ("context_length_exceeded", "exceed_context_size_error")
CONTEXT_WORDS = re.compile(
    r"maximum context length|context (?:length|size|window).{0,40}exceed"
    r"|exceeds?.{0,40}context (?:length|size|window)|prompt is too long",
    re.IGNORECASE,
)
NO_MONEY = ("insufficient_quota", "billing_hard_limit_reached")
NO_MODEL = re.compile(
    r"not a valid model|invalid model|model\b.{0,60}(?:does not exist|not found|not exist)",
    re.IGNORECASE,
)
NO_KEY = re.compile(
    r"api[ _]?key.{0,20}(?:not valid|invalid|expired)|(?:invalid|incorrect).{0,9}key", re.I
)
MODERATED = re.compile(r"flagged|moderation|content polic|safety", re.IGNORECASE)
# What any other request would meet too.
ADVICE = {
    401: "check the key",
    402: "the account is out of money",
    403: "check what the key is allowed to do",
    404: "check backend.deployment and the address",
    405: "check the address and backend.api",
}
NEVER_LEFT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, httpx2.ConnectError)
LONGEST_TOLD = 86_400.0  # seconds; a service that asks to wait longer than a day is not believed


class GatewayError(RequestFailedError):
    """A request failed for good. The message holds no key.

    `status` is the HTTP status, None where none came; `parameter` and `code` are the service's;
    `transient` says that attempts ended although another one might have succeeded. `discarded` is
    the usage of answers of a batch that could not be used, None where it is unknown.
    """

    def __init__(
        self,
        message: str,
        status: int | None,
        parameter: str | None = None,
        code: str = "",
        *,
        transient: bool = False,
    ) -> None:
        """Keep them all."""
        super().__init__(message)
        self.status, self.parameter, self.code = status, parameter, code
        self.transient = transient
        self.discarded: list[dict[str, Any] | None] = []

    @property
    def is_context_exceeded(self) -> bool:
        """Whether the service says that the prompt does not fit into the model's context."""
        about_the_cap = self.parameter not in (None, "messages", "prompt", "input")
        if self.status not in CONTEXT_STATUSES or about_the_cap:
            return False
        return self.code in CONTEXT_CODES or bool(CONTEXT_WORDS.search(str(self)))

    def advice(self, first: bool) -> str | None:
        """What to do where every other request would fail as well; None where it would not.

        `first` says that the service has not answered any request yet.
        """
        if self.code in NO_MONEY or self.status == 402:
            return ADVICE[402]
        if self.status == 401:
            return ADVICE[401]
        if not first:
            return None
        if self.transient or self.status is None:
            return "check the address and the account, or run again later"
        if self.status == 403 and MODERATED.search(str(self)):
            return None
        if 300 <= self.status < 400:
            return "the address redirects elsewhere: check it"
        if self.status == 400 and NO_KEY.search(str(self)):
            return ADVICE[401]
        if self.status == 400 and NO_MODEL.search(str(self)):
            return ADVICE[404]
        return ADVICE.get(self.status)


@dataclass(slots=True)
class Failure:
    """What an attempt's exception amounts to."""

    status: int | None
    text: str
    headers: Mapping[str, str]
    parameter: str | None = None
    code: str = ""
    unusable: bool = False  # an answer came, which holds nothing of use

    @property
    def shown(self) -> str:
        """The text on one line, of a length that a log can bear."""
        return " ".join(self.text.split())[:300]

    @property
    def tells_of_outage(self) -> bool:
        """Whether a service that answers nobody fails in this way."""
        return not self.unusable and (self.status is None or self.status >= 500)

    @property
    def is_rate_limit(self) -> bool:
        """Whether the service asks for fewer requests, which is no fault of this one."""
        return self.status == 429 and self.code not in NO_MONEY

    @property
    def transient(self) -> bool:
        """Whether another attempt may succeed."""
        if self.code in NO_MONEY:
            return False
        return self.status is None or self.status in TRANSIENT or self.status >= 500

    @property
    def retry_after(self) -> float | None:
        """Seconds that the service asks to wait; None where it asks nothing or nonsense."""
        milliseconds = duration(self.headers.get("retry-after-ms"))
        seconds = None if milliseconds is None else milliseconds / 1000
        asked = self.headers.get("retry-after")
        if seconds is None:
            seconds = duration(asked)
        if seconds is None and asked:
            seconds = _seconds_until(asked)
        return seconds if seconds is not None and seconds <= LONGEST_TOLD else None


def _seconds_until(date: str) -> float | None:
    try:
        parsed = email.utils.parsedate_tz(date)
        return max(0.0, email.utils.mktime_tz(parsed) - time.time()) if parsed else None
    except (ValueError, OverflowError):
        return None


def failure_of(error: BaseException, timeout: float = 0.0) -> Failure:
    """Classify what the client raised; `timeout` is what one attempt was given, in seconds."""
    if isinstance(error, APIStatusError):
        text = _message(error)
        headers = error.response.headers
        return Failure(error.status_code, text, headers, error.param, str(error.code or ""))
    if isinstance(error, BadAnswerError):
        return Failure(error.status, str(error), {}, code=error.code, unusable=not error.reported)
    if isinstance(error, TimeoutError):
        return Failure(None, f"no answer within {timeout:g} s (backend.retry.timeout)", {})
    what = "the connection broke" if may_have_left(error) else "no connection"
    return Failure(None, f"{what}: {_causes(error)}", {})


def may_have_left(error: BaseException) -> bool:
    """Whether a connection was made: then the service may have answered, and charge it.

    The client calls nearly every trouble of connections a time-out; its causes tell more.
    """
    return not any(isinstance(one, NEVER_LEFT) for one in _chain(error))


def _chain(error: BaseException) -> list[BaseException]:
    """An exception and its causes."""
    causes = [error]
    while (inner := causes[-1].__cause__ or causes[-1].__context__) and len(causes) < 6:
        causes.append(inner)
    return causes


def _causes(error: BaseException) -> str:
    """The texts of an exception's causes, or its own where it has none."""
    texts: list[str] = []
    chain = _chain(error)
    for cause in chain[1:] or chain:
        text = str(cause) or type(cause).__name__
        if not any(text in known for known in texts):
            texts.append(text)
    return ": ".join(texts)


def _message(error: APIStatusError) -> str:
    """The service's words, whatever JSON they came in."""
    body = error.body
    if isinstance(body, Mapping):
        for name in ("message", "detail", "error"):
            if body.get(name):
                return f"HTTP {error.status_code}: {told(body, name)[:2000]}"
    return f"HTTP {error.status_code}: {str(body or error.message)[:500]}"


ATTEMPTED = (OpenAIError, BadAnswerError, TimeoutError, OSError)


def is_worth_repeating(error: BaseException) -> bool:
    """Whether another attempt may succeed."""
    known = isinstance(error, ATTEMPTED)
    return known and (isinstance(error, APIConnectionError) or failure_of(error).transient)
