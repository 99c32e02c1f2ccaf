"""Trouble on the wire: what is tried again, what is final, and how the pace follows the service."""

import asyncio
import time
from pathlib import Path

import pytest

from components.backends.openai_api.failures import Failure, GatewayError
from components.backends.openai_api.pace import Limits, Meter, Pace, duration
from pipeline.protocols import BackendLostError
from pipeline.spec import SpecError
from tests.gateways.asking import answer, ask, backend, request
from tests.gateways.service import Reply, Seen, Service, chat, refusal, serving

GOOD = Reply(chat("fine"))
TROUBLE = {
    "500 twice": [Reply(refusal("oops"), 500), Reply(refusal("oops"), 500)],
    "408": [Reply(refusal("slow"), 408)],
    "409": [Reply(refusal("locked"), 409)],
    "429": [Reply(refusal("too many"), 429)],
    "503": [Reply(text="<html>down</html>", status=503)],
    "cut in the body": [Reply(chat("fine" * 100), cut=True)],
    "hang": [Reply(chat("late"), hang=3.0)],
    "malformed JSON": [Reply(text='{"choices": [')],
    "a list": [Reply([1, 2])],
    "no choices": [Reply({"choices": []})],
    "null without a reason": [Reply(chat(None))],
    "an error under 200": [Reply({"error": {"code": 502, "message": "upstream"}})],
    "a choice of an unknown shape": [Reply({"choices": ["text"]})],
}


@pytest.mark.parametrize("kind", TROUBLE)
def test_transient_trouble_is_tried_again(tmp_path: Path, kind: str) -> None:
    with serving(*TROUBLE[kind], GOOD) as service:
        made = answer(backend(service.url, tmp_path, "backend.retry.timeout=1"))
        assert len(service.seen) == len(TROUBLE[kind]) + 1
    assert made.text == "fine"


@pytest.mark.parametrize("status", [400, 403, 422])
def test_a_row_that_fails_for_good_is_asked_once_and_others_go_on(
    tmp_path: Path, status: int
) -> None:
    def script(seen: Seen) -> Reply:
        bad = seen.body["messages"][0]["content"] == "bad"
        return Reply(refusal("this input was flagged"), status) if bad else GOOD

    with Service(script) as service:
        found = ask(backend(service.url, tmp_path), request("bad"), request("good"))
        assert len(service.seen) == 2
    assert isinstance(found[0], GatewayError) and found[0].status == status
    assert not isinstance(found[1], BaseException) and found[1].text == "fine"


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (401, None, "check the key"),
        (402, None, "out of money"),
        (403, None, "allowed to do"),
        (404, None, "deployment"),
        (405, None, "backend.api"),
        (307, None, "redirects"),
        (429, "insufficient_quota", "account"),
    ],
)
def test_what_no_row_would_survive_ends_the_run_after_one_request(
    tmp_path: Path, status: int, code: str | None, says: str
) -> None:
    with serving(Reply(refusal("no", code=code), status)) as service:
        found = ask(backend(service.url, tmp_path), request())
        assert len(service.seen) == 1
    assert isinstance(found[0], BackendLostError) and says in str(found[0])


def test_a_model_that_the_service_does_not_know_ends_the_run(tmp_path: Path) -> None:
    with serving(Reply(refusal("gpt-99 is not a valid model ID"), 400)) as service:
        (found,) = ask(backend(service.url, tmp_path), request())
        assert len(service.seen) == 1
    assert isinstance(found, BackendLostError) and "backend.deployment" in str(found)


def test_an_account_that_runs_empty_later_ends_the_run_at_once(tmp_path: Path) -> None:
    with serving(GOOD, Reply(refusal("no credits"), 402)) as service:
        made = backend(service.url, tmp_path, "backend.pace.start=1", "backend.pace.most=1")
        found = ask(made, *(request(f"q{i}") for i in range(20)))
    assert all(isinstance(error, BackendLostError) for error in found[1:])


def test_a_first_request_that_no_attempt_gets_answered_ends_the_run(tmp_path: Path) -> None:
    with serving(Reply(text="<html>log in</html>")) as service:
        made = backend(service.url, tmp_path, "backend.retry.retries=2")
        found = ask(made, *(request(f"q{i}") for i in range(20)))
        assert len(service.seen) == 3
    assert all(isinstance(error, BackendLostError) for error in found)
    assert "no JSON" in str(found[0]) and "check the address" in str(found[0])


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("http://127.0.0.1:9/v1", "no connection: Cannot connect to host 127.0.0.1:9"),
        ("http://no-such-host.invalid/v1", "no-such-host.invalid"),
    ],
)
def test_a_service_that_is_not_there_ends_the_run_and_says_why(
    tmp_path: Path, url: str, cause: str
) -> None:
    made = backend(url, tmp_path, "backend.retry.retries=1")
    (found,) = ask(made, request())
    assert isinstance(found, BackendLostError) and url.split("//")[-1] in str(found)
    assert cause in str(found)


def test_an_address_without_its_scheme_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="http:// or https://"):
        backend("127.0.0.1:9/v1", tmp_path)


def test_tls_to_a_plain_port_says_so(tmp_path: Path) -> None:
    with serving(GOOD) as service:
        made = backend(service.url.replace("http:", "https:"), tmp_path, "backend.retry.retries=0")
        (found,) = ask(made, request())
    assert isinstance(found, BackendLostError) and "SSL" in str(found)
    assert "timed out" not in str(found).lower()


def test_retries_end_and_the_last_error_is_told(tmp_path: Path) -> None:
    with serving(GOOD, Reply(refusal("still down"), 500)) as service:
        made = backend(service.url, tmp_path, "backend.retry.retries=2")
        found = ask(made, request("a"), request("b"))
        assert len(service.seen) == 1 + 3
    assert isinstance(found[1], GatewayError) and "still down" in str(found[1])


@pytest.mark.parametrize(
    ("headers", "least"),
    [({"Retry-After": "0.5"}, 0.5), ({"retry-after-ms": "400"}, 0.4)],
)
def test_retry_after_is_honoured(tmp_path: Path, headers: dict[str, str], least: float) -> None:
    with serving(Reply(refusal("wait"), 429, headers), GOOD) as service:
        start = time.monotonic()
        answer(backend(service.url, tmp_path))
        assert least <= time.monotonic() - start < least + 2
        assert len(service.seen) == 2


def test_all_attempts_together_have_a_limit_of_their_own(tmp_path: Path) -> None:
    with serving(GOOD, Reply(refusal("down"), 500)) as service:
        settings = ("backend.retry.retries=1000", "backend.retry.overall_timeout=0.5")
        start = time.monotonic()
        found = ask(backend(service.url, tmp_path, *settings), request("a"), request("b"))
        assert time.monotonic() - start < 5 and len(service.seen) > 3
    assert isinstance(found[1], GatewayError) and "overall_timeout of 0.5 s" in str(found[1])
    assert "down" in str(found[1])


def test_retry_after_may_be_a_date() -> None:
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 20))
    told = Failure(429, "", {"retry-after": date}).retry_after
    assert told is not None and 15 < told <= 20


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1),
        ("6m0s", 360),
        ("20ms", 0.02),
        ("1h2m3s", 3723),
        ("7", 7),
        ("soon", None),
        ("", None),
    ],
)
def test_durations_of_rate_limit_headers(text: str, seconds: float | None) -> None:
    assert duration(text) == pytest.approx(seconds)


def test_a_spent_allowance_is_waited_for(tmp_path: Path) -> None:
    headers = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "500ms"}
    with serving(Reply(chat("one"), headers=headers), GOOD) as service:
        start = time.monotonic()
        ask(backend(service.url, tmp_path), request("a"), request("b"))
        assert time.monotonic() - start >= 0.5


async def used(pace: Pace, count: int, seconds: float) -> None:
    async def one() -> None:
        async with pace.admitted(1.0):
            await asyncio.sleep(seconds)
            pace.succeeded(seconds, 0.0, {})

    await asyncio.gather(*(one() for _ in range(count)))


def test_the_level_grows_while_latency_holds_and_not_past_its_bound() -> None:
    pace = Pace(Limits(start=2, most=20))
    asyncio.run(used(pace, 200, 0.002))
    assert pace.level == 20 and pace.active == 0


def test_the_level_stays_where_latency_suffers() -> None:
    pace = Pace(Limits(start=4, most=500))

    async def crowded() -> None:
        async def one() -> None:
            async with pace.admitted(1.0):
                pace.succeeded(0.01 * max(1, pace.active) ** 1.5, 0.0, {})
                await asyncio.sleep(0.001)

        await asyncio.gather(*(one() for _ in range(2000)))

    asyncio.run(crowded())
    assert 4 <= pace.level < 100


def test_only_429s_shrink_the_level_and_once_for_all_that_were_under_way(tmp_path: Path) -> None:
    pace = Pace(Limits(start=100, most=100))
    for _ in range(50):
        pace.throttled(None, {})
    assert pace.level == pytest.approx(70)
    with serving(*[Reply(refusal("oops"), 500)] * 3, GOOD) as service:
        made = backend(service.url, tmp_path)
        answer(made)
    assert made.pace.level >= 16 and made.pace.shrunk == 0


def test_no_more_requests_are_under_way_than_the_level(tmp_path: Path) -> None:
    with serving(Reply(chat("fine"), delay=0.02)) as service:
        pace = ("backend.pace.start=3", "backend.pace.most=3")
        ask(backend(service.url, tmp_path, *pace), *(request(f"q{i}") for i in range(40)))
        assert service.most_active == 3


def test_a_cap_per_minute_spaces_requests_and_tokens() -> None:
    meter = Meter(60.0)
    waits = [meter.take(1.0, now=100.0) for _ in range(4)]
    assert waits == pytest.approx([0, 0, 1, 2], abs=0.01)
    meter.correct(-2.0)
    assert meter.take(1.0, now=100.0) == pytest.approx(1, abs=0.01)
    assert Meter(None).take(1e9, now=0.0) == 0


def test_a_cap_of_requests_per_minute_holds(tmp_path: Path) -> None:
    with serving(GOOD) as service:
        start = time.monotonic()
        made = backend(service.url, tmp_path, "backend.pace.requests_per_minute=600")
        ask(made, *(request(f"q{i}") for i in range(20)))
        assert time.monotonic() - start >= (20 - 11) / 10


def test_the_level_settles_near_what_the_service_bears() -> None:
    now, bears, num_refused, num_asked = 0.0, 24, 0, 0
    pace = Pace(Limits(start=4), lambda: now)
    levels = []
    for _ in range(200):  # rounds of as many requests as the level, which all want to be sent
        asked = int(pace.level)
        pace.active = 10**6
        now += 0.05
        for number in range(asked):
            pace.succeeded(0.03, 0.0, {}) if number < bears else pace.throttled(None, {})
        num_asked += asked
        num_refused += max(0, asked - bears)
        levels.append(pace.level)
    assert all(bears / 3 < level < 2 * bears for level in levels[20:])
    assert num_refused < 0.2 * num_asked and pace.shrunk >= 1
