"""Where each service is reached, with which key and headers, and what its prefill is worth."""

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from components.backends.openai_api.backend import OpenAiBackend
from launch import api
from launch.config.compose import build_backend, to_spec
from launch.config.setup import setup_of
from pipeline.spec import SpecError
from tests.fakes.configs import ROOT, point_of
from tests.gateways.asking import ask, backend, configured, request
from tests.gateways.service import Reply, Seen, Service, chat, refusal, serving

VARIABLES = (
    "OPENAI_API_KEY OPENAI_BASE_URL OPENAI_MODEL AZURE_OPENAI_API_KEY AZURE_OPENAI_ENDPOINT "
    "AZURE_OPENAI_DEPLOYMENT AZURE_OPENAI_API_VERSION OPENROUTER_API_KEY OPENROUTER_API_BASE "
    "AI_SANDBOX_KEY PORTKEY_VIRTUAL_KEY PORTKEY_BASE_URL LOCAL_SERVER_URL LOCAL_SERVER_API_KEY"
).split()


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def made(tmp_path: Path, *overrides: str) -> OpenAiBackend:
    line = ("task=crossword", f"run.cache_dir={tmp_path}", "backend.prefill=no", *overrides)
    found = build_backend(to_spec(configured(*line)))
    assert isinstance(found, OpenAiBackend)
    return found


def one_request(service: Service, found: OpenAiBackend) -> Seen:
    (answered,) = ask(found, request())
    assert not isinstance(answered, BaseException), answered
    return service.seen[-1]


def test_azure_by_deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(chat("x")) as service:
        monkeypatch.setenv("AZURE_OPENAI_API_KEY", "az")
        monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", service.url.removesuffix("/v1") + "/")
        monkeypatch.setenv("AZURE_OPENAI_DEPLOYMENT", "mine")
        seen = one_request(service, made(tmp_path, "backend=azure"))
    assert seen.path == "/openai/deployments/mine/chat/completions"
    assert seen.query == {"api-version": "2024-12-01-preview"}
    assert seen.headers["api-key"] == "az" and "Authorization" not in seen.headers


def test_azure_by_its_newer_address_speaks_responses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = {"type": "message", "content": [{"type": "output_text", "text": "hi"}]}
    with serving({"object": "response", "status": "completed", "output": [item]}) as service:
        monkeypatch.setenv("AZURE_OPENAI_API_KEY", "az")
        monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", service.url.removesuffix("/v1"))
        seen = one_request(service, made(tmp_path, "backend=azure_v1"))
    assert seen.path == "/openai/v1/responses" and seen.query == {}
    assert seen.body["model"] == "gpt-4o" and seen.headers["api-key"] == "az"


def test_openrouter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = chat("x")
    body["usage"]["cost"] = 0.25
    with serving(body) as service:
        monkeypatch.setenv("OPENROUTER_API_KEY", "or")
        monkeypatch.setenv("OPENROUTER_API_BASE", service.url)
        found = made(tmp_path, "backend=openrouter")
        (answered,) = ask(found, request())
        (seen,) = service.seen
    assert seen.headers["Authorization"] == "Bearer or" and seen.body["usage"] == {"include": True}
    assert seen.body["model"] == "deepseek/deepseek-r1"
    extra = answered.backend_columns  # type: ignore[union-attr]
    assert (extra["endpoint"], extra["cost_usd"]) == ("openrouter", 0.25)
    assert found.describe()["cost_usd"] == 0.25


def test_portkey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(chat("x")) as service:
        monkeypatch.setenv("AI_SANDBOX_KEY", "pk")
        monkeypatch.setenv("PORTKEY_VIRTUAL_KEY", "virtual")
        monkeypatch.setenv("PORTKEY_BASE_URL", service.url)
        seen = one_request(service, made(tmp_path, "backend=portkey"))
    assert seen.headers["x-portkey-api-key"] == "pk"
    assert seen.headers["x-portkey-virtual-key"] == "virtual"
    assert "Authorization" not in seen.headers


@pytest.mark.parametrize(
    ("option", "temperature", "model", "retries"),
    [
        ("azure", 0.7, "gpt-4o", 5),
        ("openrouter", 0.05, "deepseek/deepseek-r1", 15),
        ("portkey", 0.05, "gpt-4o", 5),
        ("openai", 0.7, "gpt-4o-mini", 5),
    ],
)
def test_defaults_are_those_of_the_gateway_runners(
    option: str, temperature: float, model: str, retries: int
) -> None:
    config = configured("task=crossword", f"backend={option}")
    assert config.sampling.temperature == temperature and config.sampling.top_p == 0.95
    assert config.backend.deployment == config.model.name == model
    assert config.backend.retry.retries == retries and config.backend.retry.timeout == 120
    assert (
        configured("task=crossword", f"backend={option}", "sampling=greedy").sampling.temperature
        == 0
    )


def test_the_environment_beats_yaml_and_the_line_beats_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = ("task=crossword", "backend=azure")
    assert configured(*line).backend.api_version == "2024-12-01-preview"
    monkeypatch.setenv("AZURE_OPENAI_API_VERSION", "2030-01-01")
    assert configured(*line).backend.api_version == "2030-01-01"
    assert configured(*line, "backend.api_version=x").backend.api_version == "x"


def test_presets_differ_in_data_only() -> None:
    for option in ("openai", "azure", "azure_v1", "openrouter", "portkey", "local_server"):
        backend_node = configured("task=crossword", f"backend={option}").backend
        assert backend_node._target_ == "components.backends.openai_api.backend.OpenAiBackend"
        assert "_target_" not in (ROOT / f"conf/backend/{option}.yaml").read_text()


def test_keys_are_in_no_composed_config_identity_or_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        if name.endswith("KEY"):
            monkeypatch.setenv(name, "sk-secret-value")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://resource.example")
    for option in ("openai", "azure", "openrouter", "portkey", "local_server"):
        config = configured("task=crossword", f"backend={option}")
        found = made(tmp_path, f"backend={option}")
        shown = OmegaConf.to_yaml(config, resolve=True) + json.dumps(found.identity())
        assert "sk-secret-value" not in shown + json.dumps(found.describe()) + repr(vars(found))


@pytest.mark.parametrize("header", ["Authorization", "api-key", "X-Portkey-Api-Key"])
def test_a_key_in_the_configuration_is_refused_without_repeating_it(
    tmp_path: Path, header: str
) -> None:
    with pytest.raises(SpecError) as caught:
        made(tmp_path, "backend=openai", f"+backend.connection.headers={{{header}: sk-abc}}")
    assert "environment" in str(caught.value) and "sk-abc" not in str(caught.value)


def test_quantization_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="quantization must be none"):
        made(tmp_path, "backend=openai", "quantization=bf16")


def test_azure_without_an_address_names_the_key(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"backend\.endpoint"):
        made(tmp_path, "backend=azure")


class Turns:
    """Continues a given assistant turn, opens a new one, or refuses it; counts to ten."""

    def __init__(self, manner: str) -> None:
        self.manner = manner

    def __call__(self, seen: Seen) -> Reply:
        last = seen.body["messages"][-1]
        if last["role"] == "assistant":
            if self.manner == "refuses":
                return Reply(refusal("the last message must be the user's"), 400)
            if self.manner == "continues":
                return Reply(chat(self.going_on(last["content"])))
        if "Count" in last["content"]:
            return Reply(chat("one, two, three, four, five"))
        return Reply(chat("<think>so</think>\n<answer>LISTEN"))

    def going_on(self, turn: str) -> str:
        if turn.endswith("four,"):
            return " five, six"
        return "LISTEN" if turn.endswith("<answer>\n") else "so it is"


@pytest.mark.parametrize(
    ("manner", "phases"), [("continues", "tagged"), ("restarts", "single"), ("refuses", "single")]
)
def test_a_probe_finds_out_whether_a_turn_is_continued_and_rows_say_how_the_cue_came(
    tmp_path: Path, manner: str, phases: str
) -> None:
    with Service(Turns(manner)) as service:
        line = ["task=crossword", "run.limit=2", "cue=wait", f"run.root={tmp_path}"]
        line += ["backend=local_server", f"backend.endpoint={service.url}"]
        setup = setup_of(configured(*line, f"run.cache_dir={tmp_path}"), line)
        outcome = api.run(setup)
        assert outcome.status == 0
        rows: list[dict[str, Any]] = [json.loads(row) for row in outcome.point.rows_path.open()]
        probes = [s for s in service.seen if "Count" in s.body["messages"][0]["content"]]
        assert len(probes) == 1
        again = api.point_of(setup, api.open_backend(setup))
        assert again.folder == outcome.folder, "the finding is kept: a rerun resumes"
        assert len([s for s in service.seen if "Count" in s.body["messages"][0]["content"]]) == 1
    assert {row["phases"] for row in rows} == {phases}
    assert {row["pass2"]["cue_prefilled"] for row in rows} == {phases == "tagged"}
    first = rows[0]
    assert first["pass1"]["valid_tag_structure"] and first["pass2"]["valid_tag_structure"]
    assert first["pass1"]["is_correct_pred"]
    if phases == "tagged":
        assert first["pass1"]["usage"]["total_tokens"] == 2 * 18
        assert first["pass2"]["output"].startswith("<think>Wait")
        assert (first["pass1"]["tokens_think"], first["pass1"]["tokens_total"]) == (7, 14)
        assert service.seen[1].body["continue_final_message"] is True
    assert first["usage"]["total_tokens"] == (4 if phases == "tagged" else 2) * 18


def test_tagged_phases_with_a_service_that_takes_no_prefill_are_refused(tmp_path: Path) -> None:
    line = ("task=crossword", "backend=openai", "run.phases=tagged", f"run.root={tmp_path}")
    with pytest.raises(SpecError, match=r"run\.phases must not be tagged with backend openai"):
        point_of(configured(*line), line)


def test_a_yes_or_no_that_yaml_reads_as_a_truth_value_is_understood(tmp_path: Path) -> None:
    assert backend("http://x", tmp_path, "backend.prefill=true").capabilities.assistant_prefill
    assert not backend("http://x", tmp_path, "backend.prefill=false").capabilities.assistant_prefill
