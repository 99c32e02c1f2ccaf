"""A rate limit slows a run down and ends none, whatever the service says beside its 429."""

import logging
import threading
import time
from pathlib import Path

import pytest

from components.backends.openai_api.pace import Limits, Pace
from components.backends.openai_api.retries import Retry
from tests.gateways.asking import ask, backend, request
from tests.gateways.service import Reply, Seen, Service, chat, in_turn, refusal, serving

GOOD = Reply(chat("fine"))


class Bucket:
    """A service that gives `size` answers at once and `rate` more each second, else a 429.

    `header` is the name of the header that says how long to wait, with `true` or a value.
    """

    def __init__(self, size: int, rate: float, header: str = "", value: str = "true") -> None:
        self.left, self.size, self.rate = float(size), size, rate
        self.header, self.value = header, value
        self.num_refused = 0
        self._at: float | None = None  # it fills from the first request on
        self._lock = threading.Lock()

    def __call__(self, seen: Seen) -> Reply:
        with self._lock:
            now = time.monotonic()
            self.left = min(self.size, self.left + (now - (self._at or now)) * self.rate)
            self._at = now
            if self.left >= 1:
                self.left -= 1
                return Reply(chat("fine"), delay=0.02)
            self.num_refused += 1
            return Reply(refusal("Rate limit reached"), 429, self._headers())

    def _headers(self) -> dict[str, str]:
        wait = (1 - self.left) / self.rate
        if not self.header:
            return {}
        if self.value != "true":
            return {self.header: self.value}
        if self.header.startswith("x-ratelimit-reset"):
            return {self.header: f"{wait:.3f}s", "x-ratelimit-remaining-requests": "0"}
        return {self.header: str(int(1000 * wait))}


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("", ""),
        ("retry-after-ms", "true"),
        ("Retry-After", "0"),
        ("Retry-After", "0.05"),
        ("Retry-After", "99999999999999999999999s"),
        ("Retry-After", "Fri, 31 Dec 99999 23:59:59 GMT"),
        ("x-ratelimit-reset-requests", "true"),
    ],
)
def test_more_rows_than_the_bucket_holds_are_all_answered(
    tmp_path: Path, header: str, value: str
) -> None:
    script = Bucket(20, 60.0, header, value)
    script.left = 0.0  # so that a slow client meets a refusal too
    with Service(script) as service:
        made = backend(service.url, tmp_path, "backend.retry.retries=1", "backend.pace.start=64")
        found = ask(made, *(request(f"q{i}") for i in range(80)))
    assert not [error for error in found if isinstance(error, BaseException)]
    assert script.num_refused > 0


def test_a_429_is_no_failed_attempt_even_where_the_service_says_to_come_back_at_once(
    tmp_path: Path,
) -> None:
    limited = [Reply(refusal("slow down"), 429, {"Retry-After": "0"})] * 8
    with serving(GOOD, *limited, GOOD) as service:
        made = backend(service.url, tmp_path, "backend.retry.retries=0")
        found = ask(made, request("a"), request("b"))
        assert len(service.seen) == 10
    assert not [error for error in found if isinstance(error, BaseException)]


def test_an_error_of_code_429_under_status_200_shrinks_the_level_too(tmp_path: Path) -> None:
    limited = [Reply({"error": {"code": 429, "message": "upstream is busy"}})] * 6
    with serving(GOOD, *limited, GOOD) as service:
        made = backend(service.url, tmp_path, "backend.retry.retries=0")
        found = ask(made, *(request(f"q{i}") for i in range(8)))
    assert not [error for error in found if isinstance(error, BaseException)]
    assert made.pace.shrunk >= 1


def rounds_until(pace: Pace, level: float) -> int:
    """Rounds of answers, as many in each as the level, until it is reached."""
    num_rounds = 0
    while pace.level < level:
        pace.active = 10**6
        for _ in range(int(pace.level)):
            pace.succeeded(1.0, 0.0, {})
        num_rounds += 1
        assert num_rounds < 1000
    return num_rounds


def test_one_stray_429_leaves_the_level_as_it_was() -> None:
    pace, untouched = Pace(Limits()), Pace(Limits())
    for one in (pace, untouched):
        one.active = 10**6
        for _ in range(19):
            one.succeeded(1.0, 0.0, {})
    pace.throttled(None, {})
    assert rounds_until(pace, 512) == rounds_until(untouched, 512) and not pace.shrunk


def test_a_stray_429_among_a_hundred_leaves_the_level_as_it_was() -> None:
    pace = Pace(Limits(start=400))
    pace.active = 10**6
    for number in range(2000):
        pace.throttled(None, {}) if number % 100 == 0 else pace.succeeded(1.0, 0.0, {})
    assert pace.level == 512 and not pace.shrunk


def test_the_level_comes_back_to_that_of_the_cut_within_two_rounds_and_grows_on() -> None:
    pace = Pace(Limits(start=400))
    for _ in range(10):
        pace.throttled(None, {})
    assert pace.level == pytest.approx(280) and pace.shrunk == 1
    assert rounds_until(pace, 400) <= 2
    assert rounds_until(pace, 512) <= 20


def test_whoever_waits_says_for_what_and_how_long(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limited = [Reply(refusal("Requests per day"), 429, {"Retry-After": "0.2"})] * 3
    with Service(in_turn(*limited, GOOD)) as service, caplog.at_level(logging.WARNING):
        ask(backend(service.url, tmp_path), request())
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1, "at most one line in ten seconds"
    assert "local_server" in lines[0] and "HTTP 429: Requests per day" in lines[0]
    assert "asked again in 0.2 s" in lines[0] or "asked again in 0.3 s" in lines[0]


def test_those_who_wait_do_not_all_come_back_at_once() -> None:
    retry = Retry(backoff=1.0)
    pauses = {retry.pause(1, asked=7.0) for _ in range(20)}
    assert len(pauses) == 20 and all(7 <= pause <= 10.5 for pause in pauses)
    assert retry.pause(4, asked=0.0) >= 8
