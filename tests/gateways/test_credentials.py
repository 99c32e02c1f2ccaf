"""Keys come from the environment alone, and stand in no file, message or row."""

import base64
import json
import resource
from pathlib import Path

import pytest

from components.backends.openai_api.credentials import names_credential
from components.backends.openai_api.open_files import connections_within
from components.backends.openai_api.pace import Limits, Pace
from components.backends.openai_api.service import Connection, Keys
from pipeline.spec import SpecError
from tests.gateways.asking import KEY, answer, backend
from tests.gateways.service import chat, serving

SECRET = "Zq81xVbN0aLmKw73"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("connection.headers", {"Ocp-Apim-Subscription-Key": SECRET}),
        ("connection.headers", {"Helicone-Auth": SECRET}),
        ("connection.headers", {"authorization": SECRET}),
        ("connection.headers", {"X-Anything": f"Bearer {SECRET}"}),
        ("connection.headers", {"X-Anything": f"sk-{SECRET}"}),
        ("connection.query", {"key": SECRET}),
        ("connection.query", {"sig": SECRET}),
        ("extra_body", {"api_key": SECRET}),
        ("extra_body", {"provider": [{"accessToken": SECRET}]}),
        ("prefill_body", {"aws_secret": SECRET}),
        ("endpoint", f"http://user:{SECRET}@127.0.0.1/v1"),
        ("endpoint", f"http://127.0.0.1/v1?api-key={SECRET}"),
        ("endpoint", f"http://127.0.0.1/v1?code={SECRET}"),
        ("endpoint", f"http://127.0.0.1:{SECRET}/v1"),
        ("connection.url", f"https://host/v1?api-version=1&subscription-key={SECRET}"),
        ("connection.url", f"https://host/v1#{SECRET}"),
    ],
)
def test_what_looks_like_a_credential_is_refused_and_not_repeated(
    tmp_path: Path, setting: str, value: object
) -> None:
    with pytest.raises(SpecError) as told:
        backend("http://x/v1", tmp_path, f"+backend.{setting}={json.dumps(value)}")
    assert f"backend.{setting}" in str(told.value)
    assert "environment variable" in str(told.value) or "must be an address" in str(told.value)
    assert SECRET not in str(told.value)


@pytest.mark.parametrize(
    "name",
    [
        *("max_tokens", "prompt_cache_key", "x-portkey-provider", "stop_token", "tokenizer"),
        *("HTTP-Referer", "X-Title", "author", "keywords", "monkey", "design", "reasoning_effort"),
    ],
)
def test_names_of_other_things_are_no_credentials(name: str) -> None:
    assert not names_credential(name)


def test_a_number_is_no_credential(tmp_path: Path) -> None:
    backend("http://x/v1", tmp_path, '+backend.extra_body={"token": 7, "key": ""}')


def test_a_key_of_the_query_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_QUERY_KEY", SECRET)
    with serving(chat("fine")) as service:
        line = '+backend.connection.secret_query={"code": MY_QUERY_KEY, "other": NOT_SET}'
        answer(backend(service.url, tmp_path, line))
        assert service.seen[0].query == {"code": SECRET}


@pytest.mark.parametrize("key", ["sk-ключ", "sk-a\x07b", "sk a", "sk-a\nb", "“sk”"])
def test_a_key_that_no_header_can_carry_is_told_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("SOME_KEY", key)
    with pytest.raises(SpecError) as told:
        Keys(Connection("http://x", key_variable="SOME_KEY"), "openai")
    assert "SOME_KEY" in str(told.value) and "visible ASCII" in str(told.value)
    assert key not in str(told.value)


def test_a_key_is_hidden_in_every_form_and_a_short_one_where_it_stands_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOME_KEY", f'{KEY}"')
    keys = Keys(Connection("http://x", key_variable="SOME_KEY"), "openai")
    coded = base64.b64encode(f'{KEY}"'.encode()).decode().rstrip("=")
    shown = keys.hide(f'{KEY}" {json.dumps(KEY + chr(34))} {coded}')
    assert KEY not in shown and coded not in shown
    monkeypatch.setenv("SOME_KEY", "e")
    keys = Keys(Connection("http://x", key_variable="SOME_KEY"), "openai")
    assert keys.hide("the header e, key=e") == "the header <key>, key=<key>"


def test_an_ipv6_address_is_taken(tmp_path: Path) -> None:
    backend("http://[::1]:8000/v1", tmp_path)


def test_the_level_stays_within_the_limit_of_open_files() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        assert connections_within(300) == 300, "the soft limit is raised"
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 300
        room = connections_within(10**9)
        assert room < 10**9
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    pace = Pace(Limits(start=400))
    assert pace.bound(100) == 100 and pace.level == 100 and pace.limits.most == 100
