"""Answers in pieces: the same generation as at once, its text handed on as it becomes certain."""

import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest

from components.backends.openai_api import streaming
from components.backends.openai_api.backend import OpenAiBackend
from components.backends.openai_api.failures import GatewayError
from components.backends.openai_api.streaming import ListenerError
from pipeline.protocols import BackendLostError, Generation
from tests.gateways.asking import ask, backend, request
from tests.gateways.service import Body, Reply, Seen, Service, chat, refusal, serving

USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


def event(delta: Body, **choice: Any) -> Body:
    return {"id": "c", "model": "m-1", "choices": [{"index": 0, "delta": delta, **choice}]}


def events_of(*texts: str, finish: str = "stop", **last: Any) -> list[Any]:
    pieces = [event({"content": text}) for text in texts]
    head = event({"role": "assistant", "content": ""})
    end = event({}, finish_reason=finish, **last)
    return [head, *pieces, end, {"choices": [], "usage": USAGE}, "data: [DONE]\n\n"]


def heard(made: OpenAiBackend, **changes: Any) -> tuple[Generation, list[str]]:
    pieces: list[str] = []
    (found,) = ask(made, request(on_token=pieces.append, **changes))
    assert isinstance(found, Generation), found
    return found, pieces


def same(one: Generation, other: Generation) -> bool:
    names = ("text", "tail", "finish_reason", "num_tokens", "logprobs", "prompt_tokens")
    columns = dict(one.backend_columns) | {"served_model": 0}
    others = dict(other.backend_columns) | {"served_model": 0}
    return columns == others and all(getattr(one, n) == getattr(other, n) for n in names)


LOGPROBS = [{"token": "a", "logprob": -0.1, "top_logprobs": [{"token": "a", "logprob": -0.1}]}] * 2


@pytest.mark.parametrize(
    ("events", "whole"),
    [
        (events_of("one ", "two ", "three"), chat("one two three")),
        (events_of("cut", finish="length"), chat("cut", finish="length")),
        (
            [event({"reasoning_content": "be"}), event({"reasoning_content": "cause"})]
            + events_of("so"),
            chat("so", reasoning_content="because"),
        ),
        (
            [event({"reasoning": "long"}), event({}, finish_reason="length"), {"usage": USAGE}],
            chat(None, finish="length", reasoning="long"),
        ),
        (events_of("a </ans", "wer> b"), chat("a </answer> b")),
    ],
)
def test_a_streamed_answer_is_the_generation_of_one_that_comes_at_once(
    tmp_path: Path, events: list[Any], whole: Body
) -> None:
    with serving(Reply(events=events)) as service:
        streamed, pieces = heard(backend(service.url, tmp_path))
        assert service.seen[0].body["stream"] is True
        assert service.seen[0].body["stream_options"] == {"include_usage": True}
    with serving(whole) as service:
        (at_once,) = ask(backend(service.url, tmp_path), request())
        assert "stream" not in service.seen[0].body
    assert isinstance(at_once, Generation) and same(streamed, at_once)
    assert "".join(pieces) == streamed.text


def test_text_is_handed_on_as_it_comes_but_no_part_of_a_stop_string(tmp_path: Path) -> None:
    with serving(Reply(events=events_of("one ", "two </a", "b> </answ", "er> rest"))) as service:
        generation, pieces = heard(backend(service.url, tmp_path))
    assert pieces == ["one ", "two ", "</ab> "]
    assert (generation.text, generation.tail) == ("one two </ab> ", "</answer>")


RESPONSE = {
    "status": "completed",
    "usage": {"input_tokens": 11, "output_tokens": 7},
    "output": [{"type": "message", "content": [{"type": "output_text", "text": "so"}]}],
}


@pytest.mark.parametrize(
    ("api", "events"),
    [
        (
            "chat",
            [event({"reasoning_content": "be"}), event({"reasoning_content": "cause "})]
            + [event({"reasoning": "\ud83d"}), event({"reasoning": "\ude00"}), *events_of("so")],
        ),
        (
            "chat",
            [
                event({"content": [{"type": "thinking", "thinking": [{"text": "be"}]}]}),
                event({"reasoning_details": [{"text": "cause "}]}),
                event({"reasoning_details": [{"text": "😀"}]}),
                *events_of("so"),
            ],
        ),
        (
            "responses",
            [
                {"type": "response.reasoning_summary_text.delta", "delta": "be"},
                {"type": "response.reasoning_text.delta", "delta": "cause "},
                {"type": "response.reasoning_text.delta", "delta": "😀"},
                {"type": "response.output_text.delta", "delta": "so"},
                {"type": "response.completed", "response": RESPONSE},
            ],
        ),
    ],
)
def test_reasoning_is_handed_on_apart_as_it_comes(
    tmp_path: Path, api: str, events: list[Any]
) -> None:
    heard: list[tuple[str, str]] = []
    asked = request(
        on_token=lambda text: heard.append(("text", text)),
        on_reasoning=lambda text: heard.append(("reasoning", text)),
    )
    with serving(Reply(events=events)) as service:
        ask(backend(service.url, tmp_path, f"backend.api={api}"), asked)
    aside = [("reasoning", text) for text in ("be", "cause ", "😀")]
    assert heard == [*aside, ("text", "so")]


def test_reasoning_of_a_second_attempt_is_not_told_twice() -> None:
    heard: list[str] = []
    told = streaming.Told(request(on_reasoning=heard.append))
    told.reason("be")
    told.restart()
    told.reason("b")
    told.reason("ecause")
    assert heard == ["be", "cause"]


def test_logprobs_of_the_pieces_are_joined(tmp_path: Path) -> None:
    events = [event({"content": "a"}, logprobs={"content": [one]}) for one in LOGPROBS]
    with serving(Reply(events=events + events_of())) as service:
        generation, _ = heard(backend(service.url, tmp_path, "backend.top_logprobs=1"))
    assert generation.text == "aa" and generation.logprobs == [-0.1, -0.1]


def test_half_a_surrogate_pair_waits_for_its_other_half(tmp_path: Path) -> None:
    with serving(Reply(events=events_of("\ud83d", "\ude00!"))) as service:
        generation, pieces = heard(backend(service.url, tmp_path))
    assert generation.text == "😀!" and pieces == ["😀!"]


@pytest.mark.parametrize(
    ("api", "events", "text"),
    [
        (
            "completions",
            [
                {"choices": [{"index": 0, "text": "4"}]},
                {"choices": [{"index": 0, "text": "2", "finish_reason": "stop"}], "usage": USAGE},
            ],
            "42",
        ),
        (
            "responses",
            [
                {"type": "response.output_text.delta", "delta": "4"},
                {"type": "response.output_text.delta", "delta": "2"},
                {
                    "type": "response.completed",
                    "response": {
                        "status": "completed",
                        "usage": {"input_tokens": 11, "output_tokens": 7},
                        "output": [
                            {
                                "type": "message",
                                "content": [{"type": "output_text", "text": "42"}],
                            }
                        ],
                    },
                },
            ],
            "42",
        ),
    ],
)
def test_the_other_two_interfaces_stream_too(
    tmp_path: Path, api: str, events: list[Any], text: str
) -> None:
    with serving(Reply(events=events)) as service:
        generation, pieces = heard(backend(service.url, tmp_path, f"backend.api={api}"))
    assert generation.text == text and pieces == ["4", "2"] and generation.count == 7


@pytest.mark.parametrize(
    "broken",
    [
        Reply(events=[event({"content": "one "}), "data: {torn\n\n"]),
        Reply(events=[event({"content": "one "})]),
        Reply(events=[event({"content": "one "})], cut=True),
        Reply(events=[event({"content": "one "}), {"error": {"code": 502, "message": "up"}}]),
        Reply(events=["data: 7\n\n"]),
        Reply(events=[]),
    ],
)
def test_a_stream_that_breaks_off_is_asked_again_and_told_once(
    tmp_path: Path, broken: Reply
) -> None:
    with serving(broken, Reply(events=events_of("one ", "two"))) as service:
        generation, pieces = heard(backend(service.url, tmp_path))
        assert len(service.seen) == 2
    assert generation.text == "one two" == "".join(pieces)


@pytest.mark.parametrize("field", ["stream_options", "stream"])
def test_a_service_that_does_not_stream_is_asked_for_the_answer_at_once(
    tmp_path: Path, field: str
) -> None:
    def script(seen: Seen) -> Reply:
        if field in seen.body:
            return Reply(refusal(f"Unsupported parameter: '{field}'", field), 400)
        streams = seen.body.get("stream")
        return Reply(events=events_of("fi", "ne")) if streams else Reply(chat("fine"))

    with Service(script) as service:
        generation, pieces = heard(backend(service.url, tmp_path))
    assert generation.text == "fine" == "".join(pieces)


def test_a_body_without_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "LARGEST_BODY", 2**20)
    with serving(Reply(text=" " * 2**21), chat("fine")) as service:
        (found,) = ask(backend(service.url, tmp_path), request())
    assert isinstance(found, Generation) and found.text == "fine"


def bomb(mebibytes: int) -> bytes:
    """So many blanks, compressed a thousandfold."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = b"".join(packer.compress(b" " * 2**20) for _ in range(mebibytes))
    return packed + packer.flush()


@pytest.mark.parametrize("status", [200, 400, 500])
def test_a_body_that_grows_a_thousandfold_takes_little_memory(tmp_path: Path, status: int) -> None:
    with serving(Reply(raw=bomb(300), status=status)) as service:
        made = backend(service.url, tmp_path, "backend.retry.retries=0")
        tracemalloc.start()
        try:
            (found,) = ask(made, request())
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert isinstance(found, BackendLostError | GatewayError)
    assert peak < (90 if status == 200 else 20) * 2**20


def test_capabilities_say_that_text_is_handed_on(tmp_path: Path) -> None:
    assert backend("http://x/v1", tmp_path).capabilities.streaming
    batches = backend("http://x/v1", tmp_path, "backend.batch.enabled=true")
    assert not batches.capabilities.streaming


@pytest.mark.parametrize(
    "events", [events_of("fi", "ne"), [chat("fine"), "data: [DONE]\n\n"], [chat("fine")]]
)
def test_a_service_that_streams_unasked_is_understood(tmp_path: Path, events: list[Any]) -> None:
    with serving(Reply(events=events)) as service:
        (found,) = ask(backend(service.url, tmp_path), request())
        assert len(service.seen) == 1
    assert isinstance(found, Generation) and found.text == "fine" and found.count == 7


@pytest.mark.parametrize("listener", ["on_token", "on_reasoning"])
def test_a_listener_that_raises_fails_its_row_alone_and_nothing_is_asked_again(
    listener: str, tmp_path: Path
) -> None:
    def broken(text: str) -> None:
        raise BrokenPipeError("nobody reads")

    events = [event({"reasoning_content": "because"}), *events_of("one ", "two")]
    with serving(Reply(events=events)) as service:
        asked = request(**{"on_token": lambda _: None, listener: broken})
        failed, other = ask(backend(service.url, tmp_path), asked, request("again", on_token=print))
        assert len(service.seen) == 2, "each was asked once"
    assert isinstance(failed, ListenerError) and "BrokenPipeError: nobody reads" in str(failed)
    assert isinstance(other, Generation) and other.text == "one two"
