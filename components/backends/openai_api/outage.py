"""A service that answers nobody: whoever asks waits, and no request counts as failed."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from components.backends.openai_api.failures import Failure
from components.backends.openai_api.pace import Pace
from components.backends.openai_api.retries import Retry
from pipeline.protocols import BackendLostError

MOST_SILENCES = 64  # that are remembered
SEVERAL = 2  # requests that must fail: one alone may be what the service fails at
_LOG = logging.getLogger(__name__)


class Outage:
    """Tells the trouble of a service from that of a request, and waits until it is over.

    A service is out where it answered before, and a request ran out of its retries when several
    had failed and nobody was answered since its last attempt but one. From then on one request is
    tried at a time, more and more seldom, until one is answered or
    `backend.retry.outage_seconds` have passed.
    """

    def __init__(
        self,
        service: str,
        retry: Retry,
        pace: Pace,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing was answered yet. `service` is named in log lines; `clock` is in seconds."""
        self._service, self._retry, self._pace, self._clock = service, retry, pace, clock
        self._last_answer: float | None = None
        self._failing: set[object] = set()  # requests that failed since the last answer
        self._silences: deque[tuple[float, float]] = deque(maxlen=MOST_SILENCES)
        self._begun: float | None = None
        self._num_probes = 0
        self._limits: dict[asyncio.Timeout, float | None] = {}  # and when they end

    @asynccontextmanager
    async def within(self, seconds: float) -> AsyncIterator[None]:
        """A time limit of `seconds`, to which outages do not count. Raises TimeoutError."""
        async with asyncio.timeout(seconds) as limit:
            self._limits[limit] = limit.when()
            if self._begun is not None:
                limit.reschedule(None)
            try:
                yield
            finally:
                del self._limits[limit]

    def answered(self) -> None:
        """The service answered a request, with whatever."""
        now, last = self._clock(), self._last_answer
        several = len(self._failing) >= SEVERAL
        if last is not None and several and now - last >= self._retry.backoff:
            self._silences.append((last, now))
        if self._begun is not None:
            _LOG.warning("%s answers again, after %.0f s", self._service, self._seconds())
            self._move_limits(self._clock() - self._begun)
        self._last_answer = now
        self._failing.clear()
        self._begun = None
        self._num_probes = 0

    def failed(self, request: object, failure: Failure) -> None:
        """The service did not answer `request`: in an outage, the next one waits for longer.

        Raises:
            BackendLostError: the outage lasts too long.
        """
        self._failing.add(request)
        if self._begun is None:
            return
        if self._seconds() > self._retry.outage_seconds:
            raise BackendLostError(
                f"{self._service} has answered nobody for {self._seconds():.0f} s, longer than "
                f"backend.retry.outage_seconds={self._retry.outage_seconds:g}: {failure.shown}; "
                "run again to go on"
            )
        self._num_probes += 1
        self._pace.one_at_a_time(self._retry.pause(self._num_probes))

    def excuses(self, since: float, sent: float, failure: Failure) -> bool:
        """Whether a request that is out of retries goes on trying.

        `since` is when its last attempt but one failed, `sent` when the last one began, times of
        the clock. One that was sent while several failed and nobody was answered is excused, also
        where the service has just come back.
        """
        last = self._last_answer
        if not self._retry.outage_seconds or last is None:
            return False
        if any(begin <= sent <= end for begin, end in self._silences):
            return True
        if last > since:
            return False
        if len(self._failing) < SEVERAL:
            return False
        if self._begun is None:
            self._begun = self._clock()
            self._move_limits(None)
            _LOG.warning(
                "%s has answered nobody for %.0f s (%s): one request is tried at a time, for %g s "
                "at most (backend.retry.outage_seconds)",
                self._service,
                self._seconds(),
                failure.shown,
                self._retry.outage_seconds,
            )
        return True

    def _move_limits(self, seconds: float | None) -> None:
        """Let every time limit end so much later; None: not before the outage is over."""
        for limit, when in self._limits.items():
            with suppress(RuntimeError):  # it is just ending
                later = None if seconds is None or when is None else when + seconds
                limit.reschedule(later)
                self._limits[limit] = when if seconds is None else later

    def _seconds(self) -> float:
        """Since the last answer."""
        return self._clock() - (self._last_answer or 0.0)
