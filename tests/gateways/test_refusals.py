"""What a service refuses is learned once, from its own words and not from those of a prompt."""

import json
from pathlib import Path
from typing import Any

import pytest

from components.backends.openai_api.complaints import Complaint
from components.backends.openai_api.failures import GatewayError
from pipeline.protocols import BackendLostError, PromptTooLongError
from pipeline.spec import Sampling
from tests.gateways.asking import answer, ask, backend, request
from tests.gateways.service import Reply, Seen, Service, chat, refusal, serving


def picky(param: str, unless: str) -> Service:
    """Refuses `param` as newer models do; answers without it."""

    def script(seen: Seen) -> Reply:
        if param in seen.body:
            text = f"Unsupported parameter: '{param}' is not supported with this model. {unless}"
            return Reply(refusal(text, param, "unsupported_parameter"), 400)
        return Reply(chat("<answer>4</answer>more" if param == "stop" else "4"))

    return Service(script)


@pytest.mark.parametrize(
    ("param", "unless"),
    [
        ("max_tokens", "Use 'max_completion_tokens' instead."),
        ("stop", ""),
        ("seed", ""),
        ("logprobs", ""),
        ("top_k", ""),
        ("temperature", "Only the default (1) value is supported."),
    ],
)
def test_a_refused_parameter_is_mapped_once_not_for_every_row(
    tmp_path: Path, param: str, unless: str
) -> None:
    with picky(param, unless) as service:
        made = backend(service.url, tmp_path)
        asked = [request(f"q{i}", sampling=Sampling(temperature=1.0)) for i in range(20)]
        found = ask(made, *asked)
    assert [g.text for g in found if not isinstance(g, BaseException)] == [
        "<answer>4" if param == "stop" else "4"
    ] * 20
    assert sum(param in seen.body for seen in service.seen) == 1
    if param == "max_tokens":
        assert made.describe()["cap_name"] == "max_completion_tokens"
    else:
        assert param in made.describe()["left_out"]


def test_a_refusal_that_names_its_field_in_words_is_understood(tmp_path: Path) -> None:
    def script(seen: Seen) -> Reply:
        if "min_p" in seen.body:
            detail = "Unexpected fields in the request: {'min_p'}"
            return Reply({"detail": detail}, 422)
        return Reply(chat("4"))

    with Service(script) as service:
        assert answer(backend(service.url, tmp_path)).text == "4"
        assert len(service.seen) == 2


@pytest.mark.parametrize(
    "text",
    ["'max_tokens' is too large", "maximum context length is 8 tokens, reduce max_tokens"],
)
def test_a_cap_that_is_too_large_fails_its_row_and_keeps_its_name(
    tmp_path: Path, text: str
) -> None:
    with serving(Reply(refusal(text, "max_tokens"), 400), chat("4")) as service:
        found = ask(backend(service.url, tmp_path), request("a"), request("b"))
        assert all("max_tokens" in seen.body for seen in service.seen) and len(service.seen) == 2
    assert isinstance(found[0], GatewayError) and not isinstance(found[1], BaseException)


@pytest.mark.parametrize(
    "error",
    [
        refusal("too long", "messages", "context_length_exceeded"),
        refusal("This model's maximum context length is 8 tokens; your prompt has 9"),
        refusal("request (9 tokens) exceeds the available context size (8 tokens)"),
    ],
)
def test_a_prompt_that_exceeds_the_context_is_told_from_other_refusals(
    tmp_path: Path, error: dict[str, Any]
) -> None:
    with serving(Reply(error, 400), Reply(refusal("no such role"), 400)) as service:
        too_long, other = ask(backend(service.url, tmp_path), request("a"), request("b"))
    assert isinstance(too_long, PromptTooLongError) and isinstance(other, GatewayError)


def test_a_filter_that_must_be_off_in_another_way_is_left_out(tmp_path: Path) -> None:
    def script(seen: Seen) -> Reply:
        text = "top_k must be -1 (disable), or at least 1, got 0."
        return Reply(refusal(text), 400) if "top_k" in seen.body else Reply(chat("4"))

    with Service(script) as service:
        assert answer(backend(service.url, tmp_path)).text == "4"


def test_a_refused_temperature_ends_the_run_with_its_key(tmp_path: Path) -> None:
    with picky("temperature", "") as service:
        found = ask(backend(service.url, tmp_path), *(request(f"q{i}") for i in range(20)))
    assert all(isinstance(error, BackendLostError) for error in found)
    assert "sampling.temperature must be 1" in str(found[0]) and "0.7" in str(found[0])
    assert len(service.seen) <= 20


def test_an_error_is_final_and_its_text_holds_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_SERVER_API_KEY", "sk-very-secret")
    body = refusal("no such thing with key sk-very-secret")
    with serving(Reply(body, 422)) as service:
        (found,) = ask(backend(service.url, tmp_path), request())
        assert service.seen[0].headers["Authorization"] == "Bearer sk-very-secret"
    assert isinstance(found, GatewayError) and found.status == 422
    assert "sk-very-secret" not in str(found) and "no such thing" in str(found)
    assert len(service.seen) == 1


def refusing(message: str, status: int, *fields: str) -> Service:
    """Refuses requests that hold all of `fields`, with this message."""

    def script(seen: Seen) -> Reply:
        refused = set(fields) <= set(seen.body)
        return Reply(refusal(message), status) if refused else Reply(chat("4"))

    return Service(script)


@pytest.mark.parametrize(
    ("message", "status", "fields"),
    [
        ("You are not allowed to request logprobs from this model", 403, ("logprobs",)),
        ("Logprobs is not enabled for models/gemini-2.5-flash", 400, ("logprobs",)),
        ("This model does not support logprobs", 400, ("logprobs",)),
        ("`temperature` and `top_p` cannot both be specified", 400, ("temperature", "top_p")),
    ],
)
@pytest.mark.parametrize(("temperature", "top_p"), [(0.7, 1.0), (1.0, 0.95), (1.0, 1.0)])
def test_reasoning_models_and_claude_are_asked_as_they_want_it(
    tmp_path: Path,
    message: str,
    status: int,
    fields: tuple[str, ...],
    temperature: float,
    top_p: float,
) -> None:
    sampling = Sampling(temperature=temperature, top_p=top_p)
    with refusing(message, status, *fields) as service:
        found = ask(
            backend(service.url, tmp_path),
            *(request(f"q{i}", sampling=sampling) for i in range(5)),
        )
        assert len(service.seen) == 6
    assert not [error for error in found if isinstance(error, BaseException)]
    if "top_p" in fields:
        kept = "top_p" if top_p != 1 else "temperature"
        assert kept in service.seen[-1].body


def test_temperature_and_top_p_that_both_say_something_end_the_run_with_the_key(
    tmp_path: Path,
) -> None:
    text = "`temperature` and `top_p` cannot both be specified"
    with refusing(text, 400, "temperature", "top_p") as service:
        (found,) = ask(backend(service.url, tmp_path), request())
    assert isinstance(found, BackendLostError)
    assert "sampling.top_p must be 1" in str(found) and "either" in str(found)


def test_a_refusal_that_repeats_the_prompt_teaches_nothing(tmp_path: Path) -> None:
    def script(seen: Seen) -> Reply:
        text = seen.body["messages"][-1]["content"]
        refused = "'seed'" in text
        return Reply(refusal(f"bad input: {text}"), 400) if refused else Reply(chat("4"))

    with Service(script) as service:
        made = backend(service.url, tmp_path)
        found = ask(made, request("what is a 'seed' or 'stop'?"), request("b"))
    assert isinstance(found[0], GatewayError) and not isinstance(found[1], BaseException)
    assert "seed" in service.seen[-1].body and not made.describe()["left_out"]


BAD = "bad: the 'seed' and the stop, unsupported, " + 'max_tokens top_p "stop" ' * 3


ECHOES = [
    f"could not process: {BAD}",
    f"could not process: {BAD[:60]}",
    f"not supported: {BAD.upper()}",
    f"unsupported: {json.dumps(BAD)}",
]
OF_IT = "unsupported content near 'stop' of the prompt; its 'seed' is not allowed"


@pytest.mark.parametrize(
    ("told", "place"), [*((echo, at) for echo in ECHOES for at in (0, 1)), (OF_IT, 1)]
)
def test_a_refusal_that_repeats_the_prompt_drops_no_parameter(
    tmp_path: Path, told: str, place: int
) -> None:
    def script(seen: Seen) -> Reply:
        refused = seen.body["messages"][-1]["content"].startswith("bad")
        return Reply(refusal(told), 400) if refused else Reply(chat("4"))

    asked = [request("b")]
    asked.insert(place, request(BAD))
    with Service(script) as service:
        made = backend(service.url, tmp_path)
        found = ask(made, *asked)
        assert len(service.seen) == 2
    errors = [error for error in found if isinstance(error, BaseException)]
    assert [type(error) for error in errors] == [GatewayError]
    assert not made.describe()["left_out"] and made.describe()["cap_name"] == "max_tokens"


def test_a_parameter_that_the_prompt_names_is_learned_before_any_was_taken(tmp_path: Path) -> None:
    with refusing("Model grok-4 does not support parameter stop.", 400, "stop") as service:
        made = backend(service.url, tmp_path)
        assert answer(made, request("when does the bus stop?")).text == "4"
    assert made.describe()["left_out"] == ["stop"]


def test_a_parameter_that_was_taken_once_may_be_refused_later_by_name() -> None:
    body = {"messages": [{"role": "user", "content": "grow a seed"}], "seed": 1, "stop": ["a"]}
    taken = ("seed", "stop")
    text = "'stop' is not supported with this model"
    assert Complaint(body, text, accepted=taken).names == ["stop"]
    assert Complaint(body, text.replace("stop", "seed"), accepted=taken).names == []
    assert Complaint(body, "no", named="seed", accepted=taken).names == ["seed"]


@pytest.mark.parametrize("status", [200, 400])
def test_the_words_of_the_provider_behind_a_gateway_are_told_and_learned_from(
    tmp_path: Path, status: int
) -> None:
    raw = json.dumps({"error": {"message": "Unknown parameter: 'seed'"}})
    told = {"message": "Provider returned error", "code": 400, "metadata": {"raw": raw}}

    def script(seen: Seen) -> Reply:
        refused = "seed" in seen.body or seen.body["messages"][0]["content"] == "bad"
        return Reply({"error": told}, status) if refused else Reply(chat("4"))

    with Service(script) as service:
        found = ask(backend(service.url, tmp_path), request("good"), request("bad"))
    assert not isinstance(found[0], BaseException)
    assert isinstance(found[1], GatewayError) and "Unknown parameter" in str(found[1])


@pytest.mark.parametrize(
    "text", ["API key not valid. Please pass a valid API key.", "Invalid API key"]
)
def test_a_key_that_is_refused_with_400_ends_the_run_after_one_request(
    tmp_path: Path, text: str
) -> None:
    with serving(Reply([refusal(text)], 400)) as service:
        (found,) = ask(backend(service.url, tmp_path), request())
        assert len(service.seen) == 1
    assert isinstance(found, BackendLostError) and "check the key" in str(found)
