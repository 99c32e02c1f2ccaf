"""A provider that answers nobody for a while is waited for; a request that it fails at is not."""

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from components.backends.openai_api.backend import OpenAiBackend
from components.backends.openai_api.failures import Failure, GatewayError
from components.backends.openai_api.outage import Outage
from components.backends.openai_api.pace import Limits, Pace
from components.backends.openai_api.retries import Retry
from pipeline.protocols import BackendLostError, Generation, StoppedError
from tests.gateways.asking import ask, backend, request
from tests.gateways.faulty import Faulty, write_clues
from tests.gateways.running import rows_in
from tests.gateways.service import Reply, Seen, Service, chat, refusal

DOWN = Reply(refusal("overloaded"), 503)


class Down:
    """Answers `good` requests, then nobody for `seconds`, then everybody."""

    def __init__(self, good: int, seconds: float, trouble: Reply = DOWN) -> None:
        self.good, self.seconds, self.trouble = good, seconds, trouble
        self.num_answered = self.num_refused = 0
        self.since: float | None = None

    def __call__(self, seen: Seen) -> Reply:
        if self.num_answered < self.good:
            self.num_answered += 1
            return Reply(chat("fine"))
        now = time.monotonic()
        self.since = self.since or now
        if now - self.since < self.seconds:
            self.num_refused += 1
            return self.trouble
        return Reply(chat("fine"))


@pytest.mark.parametrize(
    ("trouble", "seconds"),
    [
        (DOWN, 1.0),
        (Reply({"error": {"code": 503, "message": "x"}}), 1.0),
        (Reply(chat("x"), hang=9), 4.0),
    ],
)
def test_an_outage_longer_than_the_retries_fails_no_row_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, trouble: Reply, seconds: float
) -> None:
    settings = ("backend.retry.retries=1", "backend.retry.timeout=1")
    with Service(Down(5, seconds, trouble)) as service, caplog.at_level(logging.WARNING):
        found = ask(
            backend(service.url, tmp_path, *settings), *(request(f"q{i}") for i in range(40))
        )
    assert not [error for error in found if isinstance(error, BaseException)]
    told = [record.getMessage() for record in caplog.records]
    begun = [line for line in told if "has answered nobody for" in line]
    assert begun and "1800 s at most (backend.retry.outage_seconds)" in begun[0]
    assert any(re.search(r"answers again, after [1-9]\d* s", line) for line in told)


def test_attempts_sent_in_an_outage_that_just_ended_are_excused() -> None:
    now = 0.0
    outage = Outage("service", Retry(backoff=1.0), Pace(Limits()), lambda: now)
    down = Failure(503, "down", {})
    outage.answered()
    for request_number in range(3):
        outage.failed(request_number, down)
    now = 100.0
    outage.answered()
    assert outage.excuses(since=50.0, sent=90.0, failure=down), "sent while nobody was answered"
    assert not outage.excuses(since=100.5, sent=101.0, failure=down)
    outage.failed(1, down)
    outage.failed(2, down)
    now = 100.5
    outage.answered()
    assert not outage.excuses(since=100.1, sent=100.3, failure=down), "too short a silence"


def test_in_an_outage_one_request_at_a_time_is_tried_and_the_level_comes_back(
    tmp_path: Path,
) -> None:
    script = Down(40, 1.0)
    pace = ("backend.pace.start=64", "backend.retry.retries=1")
    with Service(script) as service:
        made = backend(service.url, tmp_path, *pace)
        found = ask(made, *(request(f"q{i}") for i in range(600)))
    assert not [error for error in found if isinstance(error, BaseException)]
    assert script.num_refused < 2 * 64 + 80, "two attempts each, then one every 0.05 s or more"
    assert made.pace.level > 4


def test_an_outage_that_lasts_longer_than_allowed_ends_the_run_in_a_sentence(
    tmp_path: Path,
) -> None:
    settings = ("backend.retry.retries=1", "backend.retry.outage_seconds=0.5")
    with Service(Down(5, 60.0)) as service:
        started = time.monotonic()
        made = backend(service.url, tmp_path, *settings)
        found = ask(made, *(request(f"q{i}") for i in range(40)))
        assert time.monotonic() - started < 10
    errors = [error for error in found if isinstance(error, BaseException)]
    assert errors and all(isinstance(error, BackendLostError) for error in errors)
    assert "backend.retry.outage_seconds=0.5: HTTP 503: overloaded; run again" in str(errors[0])


def test_requests_that_the_service_fails_at_while_it_answers_others_end_by_their_retries(
    tmp_path: Path,
) -> None:
    def script(seen: Seen) -> Reply:
        bad = seen.body["messages"][0]["content"].startswith("bad")
        return DOWN if bad else Reply(chat("fine"), delay=0.01)

    with Service(script) as service:
        made = backend(service.url, tmp_path, "backend.retry.retries=2", "backend.pace.most=16")
        good = [request(f"q{i}") for i in range(300)]
        found = ask(made, *good[:50], request("bad 1"), request("bad 2"), *good[50:])
    errors = [error for error in found if isinstance(error, BaseException)]
    assert len(errors) == 2 and all(isinstance(error, GatewayError) for error in errors)


def test_the_last_request_of_a_run_that_the_service_fails_at_is_not_waited_for(
    tmp_path: Path,
) -> None:
    with Service(Down(1, 60.0)) as service:
        made = backend(service.url, tmp_path, "backend.retry.retries=1")
        found = ask(made, request("good"), request("bad"))
        assert len(service.seen) == 3
    assert isinstance(found[1], GatewayError)


def test_without_outage_seconds_requests_fail_by_their_retries(tmp_path: Path) -> None:
    settings = ("backend.retry.retries=1", "backend.retry.outage_seconds=0")
    with Service(Down(1, 60.0)) as service:
        made = backend(service.url, tmp_path, *settings)
        found = ask(made, *(request(f"q{i}") for i in range(4)))
    assert [type(error) for error in found[1:]] == [GatewayError] * 3


def test_an_outage_does_not_count_to_what_all_attempts_may_take(tmp_path: Path) -> None:
    settings = ("backend.retry.retries=1", "backend.retry.overall_timeout=0.6")
    with Service(Down(5, 1.5)) as service:
        found = ask(
            backend(service.url, tmp_path, *settings), *(request(f"q{i}") for i in range(40))
        )
    assert not [error for error in found if isinstance(error, BaseException)]


def test_after_an_outage_the_level_doubles_to_what_it_was() -> None:
    pace = Pace(Limits(start=400))
    pace.one_at_a_time(0.0)
    assert pace.level == 1
    pace.active = 10**6
    for _ in range(400):
        pace.succeeded(1.0, 0.0, {})
    assert 390 < pace.level <= 401


def test_a_run_ended_by_an_outage_has_no_failed_rows_and_a_rerun_completes_it(
    tmp_path: Path, here: Callable[..., str]
) -> None:
    data = write_clues(tmp_path / "clues.jsonl", 60)
    good, down = Faulty(share=0.0), True

    def script(seen: Seen) -> Reply:
        return DOWN if down and len(service.seen) > 20 else good(seen)

    line = (f"task.data.path={data}", f"run.root={tmp_path}", "backend.retry.retries=5")
    with Service(script) as service:
        shown = here(service.url, *line, "backend.retry.outage_seconds=1", status=2)
        assert "has answered nobody for" in shown and "Traceback" not in shown
        assert len(rows_in(tmp_path)) == 20
        assert not list(tmp_path.rglob("failures.jsonl"))
        (record,) = tmp_path.rglob("run.json")
        assert json.loads(record.read_text())["attempts"][-1]["status"] == "interrupted"
        down = False
        here(service.url, *line)
    assert len(rows_in(tmp_path)) == 60


async def stopped_once(made: OpenAiBackend, num_seen: int, service: Service) -> list[Any]:
    """What 40 requests become where no more are sent once the service has seen so many."""
    async with made:
        tasks = [asyncio.create_task(made.generate(request(f"q{i}"))) for i in range(40)]
        while len(service.seen) < num_seen:
            await asyncio.sleep(0.01)
        made.send_no_more()
        return await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("trouble", [DOWN, Reply(refusal("slow down"), 429)])
def test_a_run_that_ends_waits_for_nobody_who_waits_to_be_sent_again(
    tmp_path: Path, trouble: Reply
) -> None:
    settings = ("backend.retry.backoff=30", "backend.retry.longest_backoff=60")
    with Service(Down(5, 1000, trouble)) as service:
        started = time.monotonic()
        made = backend(service.url, tmp_path, *settings)
        found = asyncio.run(stopped_once(made, 20, service))
        assert time.monotonic() - started < 10
    assert {type(one) for one in found} == {Generation, StoppedError}
    assert sum(isinstance(one, Generation) for one in found) == 5


def test_a_run_that_ends_sends_no_further_request_and_keeps_the_answers_under_way(
    tmp_path: Path,
) -> None:
    pace = ("backend.pace.start=8", "backend.pace.most=8")
    with Service(lambda seen: Reply(chat("fine"), delay=0.5)) as service:
        made = backend(service.url, tmp_path, *pace)
        found = asyncio.run(stopped_once(made, 10, service))
        num_sent = len(service.seen)
    assert 10 <= num_sent <= 1 + 8 + 8
    assert sum(isinstance(one, Generation) for one in found) == num_sent
