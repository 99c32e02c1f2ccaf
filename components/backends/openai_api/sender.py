"""The way from a request to a response: client, pace, retries, and what a refusal teaches."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
from openai import APIConnectionError, AsyncOpenAI

from components.backends.openai_api.answers import (
    Answered,
    BadAnswerError,
    decode,
    read,
    refuse_error,
)
from components.backends.openai_api.attempts import Attempts
from components.backends.openai_api.batch_api import BatchApi
from components.backends.openai_api.batch_jobs import BatchJobs
from components.backends.openai_api.complaints import Complaint
from components.backends.openai_api.dialect import PATHS, Dialect, RefusedParameterError
from components.backends.openai_api.failures import GatewayError, may_have_left
from components.backends.openai_api.open_files import connections_within
from components.backends.openai_api.pace import Pace
from components.backends.openai_api.retries import Retry
from components.backends.openai_api.service import Connection, Keys, client
from components.backends.openai_api.streaming import Assembly, Told, chunks
from pipeline.protocols import BackendLostError, Request, spelled

_LOG = logging.getLogger(__name__)
REFUSALS = (400, 403, 422)
CHARACTERS_PER_TOKEN = 3  # a little below what texts of this kind have
UNREAD = {"X-Stainless-Raw-Response": "stream"}  # the client leaves the body to `chunks`
QUIET = ("httpx2", "openai")  # they log every request


# Counts an answer without a use: request, usage (None: unknown), samples, whether batched; USD.
Discard = Callable[[Request, Mapping[str, Any] | None, int, bool], float]


@dataclass(frozen=True, slots=True)
class Place:
    """Where requests go: the service's name, its base URL, the version in the query."""

    service: str
    url: str
    api_version: str | None
    cache: Path


class Sender:
    """Asks one service. The first request goes alone: what it teaches holds for all others."""

    def __init__(
        self,
        connection: Connection,
        place: Place,
        dialect: Dialect,
        pace: Pace,
        retry: Retry,
        discard: Discard,
    ) -> None:
        """Nothing is opened. `discard` counts what cannot be used and tells its cost."""
        self._discard = discard
        self.dialect, self.pace = dialect, pace
        self.attempts: Attempts | None = None
        self._connection, self._place, self._retry = connection, place, retry
        self._client: AsyncOpenAI | None = None
        self._jobs: BatchJobs | None = None
        self._first = asyncio.Lock()
        self._met = False
        self._accepted: set[str] = set()  # parameters of requests that were answered
        self._lost: BackendLostError | None = None

    async def open(self, batch: BatchApi | None = None) -> None:
        """Read the key and make the client.

        Raises:
            SpecError: there is no key.
        """
        self.pace.start()
        for name in QUIET:
            logging.getLogger(name).setLevel(logging.WARNING)
        keys = Keys(self._connection, self._place.service)
        query = {"api-version": self._place.api_version}
        limits = (self.pace.bound(connections_within(self.pace.limits.most)), self._retry.timeout)
        self._client = client(self._connection, keys, self._place.url, query, limits)
        batched = batch is not None and batch.enabled
        # Batches wait for outages themselves, as long as the service has time to finish them.
        retry = replace(self._retry, outage_seconds=0.0) if batched else self._retry
        self.attempts = Attempts(retry, self.pace, keys.hide, self._place.service)
        if batch is not None and batch.enabled:
            folder = self._place.cache / "gateways" / "batches"
            path = batch.path or f"/v1{PATHS[self.dialect.api]}"
            self._jobs = BatchJobs(batch, self._client, self.attempts, path, folder)
            self._jobs.attach(self._place.url)

    async def close(self) -> None:
        """Close the client; batches under way go on at the service."""
        if self._jobs is not None:
            await self._jobs.close()
        if self._client is not None:
            await self._client.close()
        self._client = self._jobs = None

    async def ask(self, request: Request, count: Callable[[], int], text: str | None) -> Answered:
        """The response to a request; `count` is asked for the number of samples as it is sent.

        Raises:
            GatewayError: it failed for good.
            BackendLostError: so would every other.
        """
        if self._lost is not None:
            raise self._lost
        if not self._met and not self._lies_in_a_batch(request, count, text):
            async with self._first:
                if self._lost is not None:
                    raise self._lost
                if not self._met:
                    answered = await self._heard(request, count, text, first=True)
                    self._met = True
                    return answered
        return await self._heard(request, count, text, first=False)

    async def _heard(
        self, request: Request, count: Callable[[], int], text: str | None, first: bool
    ) -> Answered:
        """The response; an error that every other request would meet ends the run."""
        try:
            return await self._ask(request, count, text, directly=first)
        except BackendLostError as error:
            self._lost = error
            raise
        except GatewayError as error:
            advice = error.advice(first)
            if advice is None:
                self._met = True
                raise
            place = f"{self._place.service} at {self._place.url}"
            self._lost = BackendLostError(f"{place}: {error}; {advice}")
            raise self._lost from None

    def _lies_in_a_batch(
        self, request: Request, count: Callable[[], int], text: str | None
    ) -> bool:
        """Whether an earlier attempt has this request under way."""
        if self._jobs is None:
            return False
        return self._jobs.holds(self.dialect.body(request, count(), text), f"{request.seed:x}")

    def stop(self) -> None:
        """Send nothing any more: whoever waits to be sent, or for a batch, gets a StoppedError."""
        self.pace.stop()
        if self._jobs is not None:
            self._jobs.stop()

    def lose(self, error: BackendLostError) -> None:
        """Send nothing any more: every further request fails with `error`."""
        self._lost = error

    @property
    def met(self) -> bool:
        """Whether the service has answered, so that batches take what follows."""
        return self._met

    async def _ask(
        self, request: Request, count: Callable[[], int], text: str | None, directly: bool = False
    ) -> Answered:
        assert self.attempts is not None
        characters = len(text or "") or sum(
            len(spelled(m.content)) for m in request.prompt.messages
        )
        estimate = characters / CHARACTERS_PER_TOKEN + request.cap
        body: dict[str, Any] = {}
        discarded_usd: list[float] = []
        told = Told(request)
        num_samples = 1

        def write() -> None:
            nonlocal num_samples
            num_samples = count()
            body.clear()
            body.update(self.dialect.body(request, num_samples, text))
            if request.on_token is not None and (self._jobs is None or directly):
                body.update(self.dialect.streaming())

        def discard(usage: Mapping[str, Any] | None, batched: bool = False) -> None:
            discarded_usd.append(self._discard(request, usage, num_samples, batched))

        async def send() -> Answered:
            if self._lost is not None:
                raise self._lost
            write()
            with _unusable(discard):
                return await self._post(body, estimate, told)

        while True:
            try:
                if self._jobs is None or directly:
                    renew = request.spending.renew if request.spending else None
                    answered = await self.attempts.run(estimate, send, renew)
                else:
                    write()
                    answered, unused = await self._jobs.result(body, f"{request.seed:x}")
                    for usage in unused:
                        discard(usage, True)
                answered.discarded_usd = math.fsum(discarded_usd)
                answered.num_told = told.num_told
                return answered
            except GatewayError as error:
                for usage in error.discarded:
                    discard(usage, True)
                accepted = set() if self._jobs and not directly else self._accepted
                if error.status not in REFUSALS or not self._learn(body, error, accepted):
                    raise

    async def _post(self, body: dict[str, Any], estimate: float, told: Told) -> Answered:
        assert self._client is not None
        start = time.monotonic()
        path = PATHS[self.dialect.api]
        response = await self._client.post(
            path, cast_to=httpx2.Response, body=body, options={"headers": UNREAD}
        )
        told.restart()
        answered = read(await _value(response, told))
        self._accepted |= set(body)
        surplus = answered.usage.get("total_tokens", estimate) - estimate
        self.pace.succeeded(time.monotonic() - start, surplus, response.headers)
        return answered

    def _learn(self, body: dict[str, Any], error: GatewayError, accepted: set[str]) -> bool:
        try:
            complaint = Complaint(body, str(error), error.parameter, accepted)
            again = self.dialect.learn(body, complaint)
        except RefusedParameterError as refused:
            raise BackendLostError(f"{refused} ({self._place.service}: {error})") from None
        if again:
            text = "%s: %s; asked in another way from now on"
            _LOG.warning(text, self._place.service, error)
        return again


async def _value(response: httpx2.Response, told: Told) -> dict[str, Any]:
    """The body's JSON object, also of a service that streams unasked."""
    if "event-stream" in response.headers.get("content-type", ""):
        return refuse_error(await Assembly(told).read(chunks(response)))
    return decode(b"".join([chunk async for chunk in chunks(response)]))


@contextmanager
def _unusable(discard: Callable[[Mapping[str, Any] | None], None]) -> Iterator[None]:
    """Discard the usage of an answer that cannot be used, None where it may have been paid."""
    try:
        yield
    except BadAnswerError as error:
        if error.may_be_paid:
            discard(error.usage or None)
        raise
    except APIConnectionError as error:
        if may_have_left(error):
            discard(None)
        raise
    except asyncio.CancelledError:  # the time-out of the attempt, or the end of the run
        discard(None)
        raise
