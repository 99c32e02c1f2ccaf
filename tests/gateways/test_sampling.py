"""Sampling that services know is sent in their words; the rest is refused by its key."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.config.compose import to_spec
from pipeline.protocols import STRATEGIES, BackendLostError
from pipeline.run.point import refuse_what_it_cannot
from pipeline.spec import Sampling, SpecError
from tests.gateways.asking import answer, ask, backend, configured, request
from tests.gateways.service import Reply, Seen, Service, chat, refusal, serving

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
NAMED = {"name": "answer", "strict": True, "schema": SCHEMA}
PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": -1.0, "logit_bias": {11: -100.0}}
SENT = PENALTIES | {"logit_bias": {"11": -100.0}}
OFF: dict[str, Any] = {
    "typical_p": 0.5,
    "no_repeat_ngram_size": 3,
    "min_new_tokens": 4,
    "num_beams": 2,
    "regex": "a+",
}


def test_penalties_bias_and_schema_reach_a_chat_service_as_it_calls_them(tmp_path: Path) -> None:
    with serving(chat('{"a": 1}')) as service:
        sampling = Sampling(json_schema=SCHEMA, **PENALTIES)
        answer(backend(service.url, tmp_path), request(sampling=sampling))
        body = service.seen[-1].body
    assert {name: body[name] for name in SENT} == SENT
    assert body["response_format"] == {"type": "json_schema", "json_schema": NAMED}


def test_what_is_off_is_not_sent(tmp_path: Path) -> None:
    with serving(chat("x")) as service:
        answer(backend(service.url, tmp_path))
        assert not {*SENT, "response_format"} & set(service.seen[-1].body)


def test_responses_has_its_own_word_for_a_schema(tmp_path: Path) -> None:
    item = {"type": "message", "content": [{"type": "output_text", "text": "{}"}]}
    with serving({"object": "response", "status": "completed", "output": [item]}) as service:
        made = backend(service.url, tmp_path, "backend.api=responses")
        answer(made, request(sampling=Sampling(json_schema=SCHEMA)))
        assert service.seen[-1].body["text"] == {"format": {"type": "json_schema", **NAMED}}


@pytest.mark.parametrize(
    ("api", "knows"),
    [
        ("chat", {*PENALTIES, "json_schema"}),
        ("completions", {*PENALTIES}),
        ("responses", {"json_schema"}),
    ],
)
def test_what_an_api_does_not_know_is_refused_by_its_key(
    api: str, knows: set[str], tmp_path: Path, smollm2: Path
) -> None:
    words = (f"backend.api={api}", "model=local", f"model.path={smollm2}")
    made = backend("http://localhost:1", tmp_path, *words)
    spec = to_spec(configured("task=crossword", "backend=local_server", "model=hosted"))
    given: dict[str, Any] = OFF | PENALTIES | {"json_schema": SCHEMA}
    assert {*given, "length_penalty", "early_stopping"} == set(STRATEGIES)
    for name, value in given.items():
        temperature = 0.0 if name == "num_beams" else 0.7
        asked = replace(spec, sampling=Sampling(temperature=temperature, **{name: value}))
        if name in knows:
            refuse_what_it_cannot(asked, made)
            continue
        with pytest.raises(SpecError, match=rf"sampling\.{name} must be .* \(off\) with backend"):
            refuse_what_it_cannot(asked, made)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("presence_penalty", "sampling.presence_penalty must be 0"),
        ("logit_bias", "sampling.logit_bias must be null"),
        ("response_format", "sampling.json_schema must be null"),
    ],
)
def test_a_service_that_refuses_one_ends_the_run_with_the_key(
    name: str, key: str, tmp_path: Path
) -> None:
    def script(seen: Seen) -> Reply:
        text = f"Unsupported parameter: '{name}' is not supported with this model."
        return Reply(refusal(text, name, "unsupported_parameter"), 400)

    with Service(script) as service:
        sampling = Sampling(json_schema=SCHEMA, **PENALTIES)
        (found,) = ask(backend(service.url, tmp_path), request(sampling=sampling))
    assert isinstance(found, BackendLostError) and key in str(found)
