"""Whatever a service answers is an answer, or an error that its caller expects."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from components.backends.openai_api.answers import Answered, BadAnswerError, decode, read
from components.backends.openai_api.bounds import probability_fields
from components.backends.openai_api.complaints import Complaint
from components.backends.openai_api.credentials import names_credential
from components.backends.openai_api.dialect import Dialect, RefusedParameterError
from components.backends.openai_api.endings import ending
from components.backends.openai_api.failures import Failure
from components.backends.openai_api.pace import Limits, Pace, duration
from components.backends.openai_api.prices import Price
from components.backends.openai_api.streaming import Assembly, Told
from components.backends.openai_api.usage import normal_usage
from pipeline.store.files import encode
from tests.gateways.asking import request
from tests.gateways.service import chat

CHEAP = settings(max_examples=150, deadline=None)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["stop", "length", "error", "\ud83d", "<|channel|>final<|message|>x", "</answer>"]
    )
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
CHAT = chat("text", reasoning="why")
CHAT["choices"][0] |= {"logprobs": {"content": [{"token": "a", "logprob": -1, "top_logprobs": []}]}}
OLD = {"choices": [{"text": "a", "logprobs": {"tokens": ["a"], "token_logprobs": [-1]}}]}
RESPONSE = {
    "status": "completed",
    "usage": {"input_tokens": 1, "output_tokens": 2, "output_tokens_details": {}},
    "output": [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "why"}]},
        {"type": "message", "content": [{"type": "output_text", "text": "a", "logprobs": []}]},
    ],
}


def paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something lies in a nested value."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    found = [here] if here else []
    return found + [path for name, inner in items for path in paths(inner, (*here, name))]


def with_value(body: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of `body` in which another value lies at `path`."""
    copy = json.loads(json.dumps(body))
    at = copy
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = value
    return copy


BODIES = st.sampled_from([CHAT, OLD, RESPONSE]).flatmap(
    lambda body: st.builds(with_value, st.just(body), st.sampled_from(paths(body)), VALUES)
)


def use(answered: Answered) -> None:
    """What the backend does with an answer; all of it can be written into a row."""
    for said in answered.choices:
        text, tail, _ = ending(said, request(), "left_out")
        chosen, columns = probability_fields(said, 5)
        encode([text, tail, answered.usage, answered.model])
        text.encode()
        json.dumps([chosen, columns, said.extra], allow_nan=False)
    cost = Price(1.0, 2.0).of(answered.usage, False)
    assert 0 <= cost < float("inf")


@CHEAP
@given(BODIES)
@example(with_value(CHAT, ("usage", "completion_tokens"), -1))
@example(with_value(CHAT, ("usage", "total_tokens"), float("inf")))
@example(with_value(CHAT, ("choices", 0, "logprobs", "content"), [None]))
@example(with_value(CHAT, ("choices", 0, "index"), "one"))
def test_a_body_with_any_value_at_any_place_is_an_answer_or_none(body: Any) -> None:
    try:
        answered = read(decode(json.dumps(body).encode()))
    except BadAnswerError:
        return
    use(answered)


@CHEAP
@given(st.sampled_from(["1e400", "-1e400", "NaN", "Infinity", "1" * 400, "1" * 5000]), st.data())
def test_a_number_that_no_row_could_hold_costs_no_answer(number: str, data: st.DataObject) -> None:
    path = data.draw(
        st.sampled_from(
            [
                ("usage", "total_tokens"),
                ("choices", 0, "logprobs", "content", 0, "logprob"),
                ("choices", 0, "message", "tool_calls"),
            ]
        )
    )
    body = json.dumps(with_value(CHAT, path, "NUMBER")).replace('"NUMBER"', number)
    use(read(decode(body.encode())))


@CHEAP
@given(st.binary(max_size=60) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_an_answer_or_none(data: bytes) -> None:
    try:
        use(read(decode(data)))
    except BadAnswerError:
        return


EVENT = {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}
EVENTS = st.builds(with_value, st.just(EVENT), st.sampled_from(paths(EVENT)), VALUES)
LINES = (EVENTS | VALUES).map(lambda value: b"data: " + json.dumps(value).encode())


@CHEAP
@given(st.lists(LINES | st.binary(max_size=20), max_size=5), st.integers(1, 40))
def test_any_stream_is_an_answer_or_none_wherever_it_is_cut(lines: list[bytes], size: int) -> None:
    data = b"\n".join(lines)

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(data), size):
            yield data[start : start + size]

    pieces: list[str] = []
    try:
        body = asyncio.run(Assembly(Told(request(on_token=pieces.append))).read(chunks()))
        use(read(body))
    except BadAnswerError:
        return
    "".join(pieces).encode()


@CHEAP
@given(st.lists(st.text(alphabet="a</nswer>\ud83d\ude00", max_size=6), max_size=8))
def test_what_is_told_is_the_beginning_of_the_text(deltas: list[str]) -> None:
    pieces: list[str] = []
    told = Told(request(on_token=pieces.append))
    for delta in deltas:
        told.add(delta)
    text = "".join(deltas).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    shown = "".join(pieces)
    assert text.startswith(shown) and "</answer>" not in shown


@CHEAP
@given(st.text(max_size=30), st.sampled_from(["retry-after", "retry-after-ms"]))
@example("99999999999999999999999s", "retry-after")
@example("Fri, 31 Dec 99999 23:59:59 GMT", "retry-after")
def test_any_header_is_a_wait_of_a_day_at_most_or_none(value: str, name: str) -> None:
    seconds = Failure(429, "", {name: value}).retry_after
    assert seconds is None or 0 <= seconds <= 86_400
    reset = duration(value)
    assert reset is None or 0 <= reset < 1e6
    Pace(Limits()).throttled(seconds, {"x-ratelimit-reset-requests": value})


@CHEAP
@given(st.text(max_size=60), st.none() | st.sampled_from(["seed", "top_p", "max_tokens", "stop"]))
def test_any_complaint_is_learned_from_ignored_or_refused(
    complaint: str, named: str | None
) -> None:
    dialect = Dialect("chat", "m", "max_tokens", top_logprobs=5)
    body = dialect.body(request())
    try:
        dialect.learn(body, Complaint(body, complaint, named))
    except RefusedParameterError:
        return
    assert {"messages", "model"} <= set(dialect.body(request()))


@CHEAP
@given(VALUES)
def test_any_usage_is_numbers_or_left_out(usage: Any) -> None:
    assert all(0 <= amount < 1e13 for amount in normal_usage(usage).values())


@pytest.mark.parametrize("prefix", ["", "x-", "my_", "aws"])
@given(st.sampled_from(["key", "apiKey", "API_KEY", "Token", "secret", "Authorization", "passwd"]))
def test_names_of_credentials_are_found_with_any_prefix(prefix: str, name: str) -> None:
    joint = name if not prefix or prefix[-1] in "-_" else name[:1].upper() + name[1:]
    assert names_credential(prefix + joint)
