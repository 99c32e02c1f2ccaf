"""What a service answers becomes text, tokens and reasons."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from components.backends.openai_api.answers import finish_reason
from components.backends.openai_api.bounds import lower_bound
from components.backends.openai_api.prefill import Findings
from components.backends.openai_api.prices import Price
from components.backends.openai_api.prompt_text import PromptText
from pipeline.protocols import Group, Message, Prompt
from pipeline.spec import ModelSpec
from tests.gateways.asking import answer, ask, backend, request
from tests.gateways.service import Reply, Service, chat, serving

TOP = [{"token": "a", "logprob": math.log(0.5)}, {"token": "b", "logprob": math.log(0.25)}]
TOKEN = {"token": "a", "logprob": math.log(0.5), "top_logprobs": TOP}


def with_logprobs(value: Any) -> dict[str, Any]:
    body = chat("a")
    body["choices"][0]["logprobs"] = value
    return body


@pytest.mark.parametrize(
    ("fields", "text", "extra"),
    [
        ({"text": "plain"}, "plain", {}),
        ({"text": "x", "reasoning": "why"}, "x", {"reasoning": "why"}),
        ({"text": "x", "reasoning_content": "why"}, "x", {"reasoning": "why"}),
        (
            {"text": "x", "reasoning_details": [{"text": "wh"}, {"text": "y"}]},
            "x",
            {"reasoning": "why"},
        ),
        (
            {"text": None, "reasoning": "long", "finish": "length"},
            "",
            {"content_null": "reasoning"},
        ),
        ({"text": None, "finish": "length"}, "", {"content_null": "length"}),
        ({"text": None, "refusal": "I will not"}, "", {"refusal": "I will not"}),
        ({"text": None, "finish": "content_filter"}, "", {"ended_by": "content_filter"}),
        ({"text": [{"type": "text", "text": "par"}, {"type": "text", "text": "ts"}]}, "parts", {}),
        ({"text": [{"type": "image"}, None, {"type": "text", "text": "told"}]}, "told", {}),
        ({"text": {"type": "text", "text": "told"}}, "told", {}),
    ],
)
def test_text_reasoning_refusals_and_filters(
    tmp_path: Path, fields: dict[str, Any], text: str, extra: dict[str, Any]
) -> None:
    with serving(chat(**fields)) as service:
        made = answer(backend(service.url, tmp_path))
    assert made.text == text
    assert {k: made.backend_columns.get(k) for k in extra} == extra
    assert made.count == 7 and made.backend_columns["usage"]["total_tokens"] == 18


@pytest.mark.parametrize(
    ("text", "finish", "stop_reason", "ends"),
    [
        ("<answer>4", "stop", ..., ("<answer>4", "</answer>", "stop_token")),
        ("<answer>4", "stop", None, ("<answer>4", "", "eos")),
        ("4", "stop", "</answer>", ("4", "</answer>", "stop_token")),
        ("<answer>4</answer> and more", "stop", ..., ("<answer>4", "</answer>", "stop_token")),
        ("4", "stop", ..., ("4", "", "eos")),
        ("<answer>4", "length", ..., ("<answer>4", "", "max_new_tokens")),
        ("<answer>4", "model_length", ..., ("<answer>4", "", "max_context")),
        ("<answer>4", "model_context_window_exceeded", ..., ("<answer>4", "", "max_context")),
        ("<answer>4", "MAX_TOKENS", ..., ("<answer>4", "", "max_new_tokens")),
        ("<answer>4", "output_limit", ..., ("<answer>4", "", "max_context")),
        ("<answer>4", "content_filter", ..., ("<answer>4", "", "other")),
    ],
)
def test_a_stop_string_is_told_from_an_end_of_turn(
    tmp_path: Path, text: str, finish: str, stop_reason: Any, ends: tuple[str, str, str]
) -> None:
    body = chat(text, finish=finish)
    if stop_reason is not ...:
        body["choices"][0]["stop_reason"] = stop_reason
    with serving(body) as service:
        made = answer(backend(service.url, tmp_path))
    assert (made.text, made.tail, made.finish_reason) == ends


@pytest.mark.parametrize(
    ("matched", "ends"),
    [
        (151645, ("", "eos")),  # the id of a token that ends the turn
        ("<|im_end|>", ("", "eos")),
        ("</answer>", ("</answer>", "stop_token")),
    ],
)
def test_what_matched_tells_an_end_of_turn_from_a_stop_string(
    tmp_path: Path, matched: Any, ends: tuple[str, str]
) -> None:
    body = chat("<answer>4")
    body["choices"][0]["matched_stop"] = matched
    with serving(body) as service:
        made = answer(backend(service.url, tmp_path))
    assert (made.tail, made.finish_reason) == ends


@pytest.mark.parametrize(
    ("text", "num_tokens", "ends"),
    [
        ("<answer>4", 50, ("", "max_new_tokens")),
        ("<answer>4", 49, ("</answer>", "stop_token")),
        ("<answer>4</answer>", 50, ("</answer>", "stop_token")),
        ("4", 50, ("", "eos")),
    ],
)
def test_an_open_tag_at_the_cap_is_cut_though_the_service_says_stop(
    tmp_path: Path, text: str, num_tokens: int, ends: tuple[str, str]
) -> None:
    body = chat(text)
    body["usage"] |= {"completion_tokens": num_tokens}
    with serving(body) as service:
        made = answer(backend(service.url, tmp_path))
    assert (made.tail, made.finish_reason) == ends


def test_a_service_that_keeps_stop_strings_ends_open_tags_by_itself(tmp_path: Path) -> None:
    with serving(chat("<answer>4")) as service:
        made = answer(backend(service.url, tmp_path, "backend.stop_text=kept"))
    assert (made.tail, made.finish_reason) == ("", "eos")


def test_a_lower_bound_is_below_the_entropy_and_exact_where_all_is_known() -> None:
    exact = -sum(p * math.log(p) for p in (0.5, 0.25, 0.15, 0.1))
    assert lower_bound([math.log(p) for p in (0.5, 0.25, 0.15, 0.1)]) == pytest.approx(exact)
    two = lower_bound([math.log(0.5), math.log(0.25)])
    assert 0.75 < two <= exact
    assert lower_bound([0.0]) == 0


@pytest.mark.parametrize(
    ("shape", "logprobs", "missing", "k"),
    [
        ({"content": [TOKEN]}, [math.log(0.5)], "likeliest tokens only", 2),
        ({"content": [TOKEN | {"top_logprobs": []}]}, [math.log(0.5)], "chosen tokens'", None),
        ({"content": None}, None, "no probabilities", None),
        ({"content": []}, None, "no probabilities", None),
        (None, None, "no probabilities", None),
        (
            {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [{"a": -1.0, "b": -2.0}]},
            [-1.0],
            "likeliest tokens only",
            2,
        ),
        ({"tokens": ["a"], "token_logprobs": [None], "top_logprobs": None}, None, "no prob", None),
    ],
)
def test_every_shape_of_logprobs_gives_a_named_bound_or_a_reason(
    tmp_path: Path, shape: Any, logprobs: list[float] | None, missing: str, k: int | None
) -> None:
    with serving(with_logprobs(shape)) as service:
        made = answer(backend(service.url, tmp_path))
    assert made.logprobs == logprobs and made.entropies is None
    assert missing in made.backend_columns["entropy_missing"]
    assert made.backend_columns.get("entropy_top_k") == k
    assert ("entropy_lower_bounds" in made.backend_columns) == (k is not None)


def test_responses_have_their_own_shape(tmp_path: Path) -> None:
    body = {
        "object": "response",
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
        "output": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "because"}]},
            {"type": "message", "content": [{"type": "output_text", "text": "<answer>4"}]},
        ],
        "usage": {
            "input_tokens": 3,
            "output_tokens": 9,
            "output_tokens_details": {"reasoning_tokens": 5},
            "input_tokens_details": {"cached_tokens": 2},
        },
    }
    with serving(body) as service:
        made = answer(backend(service.url, tmp_path, "backend.api=responses"))
        (seen,) = service.seen
    assert seen.path == "/v1/responses" and seen.body["max_output_tokens"] == 50
    assert seen.body["input"][0]["content"] == "hello" and "stop" not in seen.body
    assert (made.text, made.finish_reason) == ("<answer>4", "max_new_tokens")
    assert made.backend_columns["reasoning"] == "because"
    wanted = {"prompt_tokens": 3, "completion_tokens": 9, "total_tokens": 12}
    assert made.backend_columns["usage"] == wanted | {"cached_tokens": 2, "reasoning_tokens": 5}


def test_completions_get_one_text_and_a_prefill_at_its_end(tmp_path: Path) -> None:
    body = {"choices": [{"index": 0, "text": "4", "finish_reason": "stop"}], "usage": {}}
    prompt = Prompt((Message("user", ("2+2?",)),), ("<answer>\n",))
    with serving(body) as service:
        made = answer(
            backend(service.url, tmp_path, "backend.api=completions"), request(prompt=prompt)
        )
        (seen,) = service.seen
    assert seen.path == "/v1/completions" and seen.body["prompt"] == "2+2?\n\n<answer>\n"
    assert (made.text, made.tail) == ("4", "</answer>")


def test_impossible_tokens_and_missing_usage_do_not_break_a_row(tmp_path: Path) -> None:
    body = with_logprobs({"content": [TOKEN, TOKEN | {"logprob": -math.inf}]})
    del body["usage"]
    text = json.dumps(body)
    assert "-Infinity" in text
    with serving(Reply(text=text)) as service:
        made = answer(backend(service.url, tmp_path))
    assert made.logprobs == [math.log(0.5), -9999.0] and made.count == 2
    bare = chat("x")
    del bare["usage"]
    with serving(bare) as service:
        made = answer(backend(service.url, tmp_path))
    assert made.count == 0 and made.backend_columns["tokens_unknown"]


@pytest.mark.parametrize("kind", ["openai"])
def test_samples_share_a_request_where_the_service_makes_several(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with serving(chat("one", "two", "three")) as service:
        asked = [request(group=Group("g", i, 3), seed=i) for i in range(3)]
        made = backend(service.url, tmp_path, kind=kind)
        found = ask(made, *asked)
        (seen,) = service.seen
    assert seen.body["n"] == 3
    assert [g.text for g in found if not isinstance(g, BaseException)] == ["one", "two", "three"]
    usages = [g.backend_columns["usage"] for g in found if not isinstance(g, BaseException)]
    assert sum(usage["prompt_tokens"] for usage in usages) == 11
    assert sum(usage["completion_tokens"] for usage in usages) == 21


def test_a_service_that_ignores_n_is_asked_for_the_rest_one_by_one(tmp_path: Path) -> None:
    numbers = iter(range(100))
    with Service(lambda seen: Reply(chat(f"text {next(numbers)}"))) as service:
        asked = [request(f"q{i // 4}", group=Group(f"g{i // 4}", i % 4, 4)) for i in range(16)]
        found = ask(backend(service.url, tmp_path, "backend.samples_per_request=true"), *asked)
        paid = len(service.seen)
    texts = {g.text for g in found if not isinstance(g, BaseException)}
    assert len(texts) == 16 == paid


@pytest.mark.parametrize(
    "logprobs",
    [
        {"content": [{"token": "a", "logprob": -1, "top_logprobs": [{"token": "a"}]}]},
        {"content": [None]},
        {"content": "text"},
        {"tokens": ["a", "b"], "token_logprobs": [-1.0]},
    ],
)
def test_probabilities_of_an_unknown_shape_cost_no_answer(tmp_path: Path, logprobs: Any) -> None:
    with serving(with_logprobs(logprobs)) as service:
        made = answer(backend(service.url, tmp_path))
        assert len(service.seen) == 1
    assert made.text == "a" and made.logprobs is None
    assert "unknown shape" in made.backend_columns["entropy_missing"]


@pytest.mark.parametrize(
    ("usage", "left"),
    [
        ({"prompt_tokens": 3, "prompt_tokens_details": [1]}, {"prompt_tokens": 3}),
        ({"prompt_tokens": 0, "total_tokens": 0}, {"prompt_tokens": 0, "total_tokens": 0}),
        ({"prompt_tokens": -3, "completion_tokens": 1e400, "cost": -300}, {}),
        ("nonsense", {}),
        ([1], {}),
    ],
)
def test_usage_that_is_nonsense_or_half_there_is_not_believed(
    tmp_path: Path, usage: Any, left: dict[str, Any]
) -> None:
    prices = "backend.prices={m: {input: 1.0, output: 2.0}}"
    with serving(chat("a") | {"usage": usage}) as service:
        made = answer(backend(service.url, tmp_path, prices))
    assert made.text == "a" and made.backend_columns["usage"] == left
    assert made.backend_columns["cost_usd"] is None


def test_reasoning_outside_of_the_completion_is_paid_like_output() -> None:
    price = Price(input=0.15, output=0.6)
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 1110}
    assert price.of(usage, False) == pytest.approx((100 * 0.15 + 1010 * 0.6) / 1e6)
    beside = {"prompt_tokens": 100, "completion_tokens": 10, "reasoning_tokens": 1000}
    assert price.of(beside, False) == price.of(usage, False)
    within = {"prompt_tokens": 100, "completion_tokens": 1010, "reasoning_tokens": 1000}
    assert price.of(within, False) == price.of(usage, False)


def test_with_a_key_of_ones_own_at_the_provider_its_charge_counts(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7, "cost": 0.01}
    usage |= {"is_byok": True, "cost_details": {"upstream_inference_cost": 0.3}}
    with serving(chat("a") | {"usage": usage}) as service:
        made = answer(backend(service.url, tmp_path))
    assert made.backend_columns["cost_usd"] == pytest.approx(0.31)


@pytest.mark.parametrize("code", [503, "server_error"])
def test_an_error_in_place_of_an_answer_is_not_paid(tmp_path: Path, code: int | str) -> None:
    prices = "backend.prices={m: {input: 1.0, output: 2.0}}"
    error = {"error": {"code": code, "message": "upstream"}}
    with serving(error, error | {"usage": chat("a")["usage"]}, chat("a")) as service:
        made = answer(backend(service.url, tmp_path, prices))
    assert made.backend_columns["discarded_usd"] == made.backend_columns["cost_usd"]


@pytest.mark.parametrize(
    "reason", ["error", "abort", "insufficient_system_resource", "cancelled", "engine_overloaded"]
)
def test_a_generation_that_the_service_broke_off_is_asked_again(
    tmp_path: Path, reason: str
) -> None:
    with serving(chat("half an ans", finish=reason), chat("whole")) as service:
        assert answer(backend(service.url, tmp_path)).text == "whole"
        assert len(service.seen) == 2


@pytest.mark.parametrize("status", ["failed", "cancelled", "in_progress"])
def test_a_response_that_did_not_complete_is_asked_again(tmp_path: Path, status: str) -> None:
    part = {"type": "output_text", "text": "told"}
    body = {"output": [{"type": "message", "content": [part]}], "status": "completed"}
    with serving(body | {"status": status}, body) as service:
        assert answer(backend(service.url, tmp_path, "backend.api=responses")).text == "told"
        assert len(service.seen) == 2


@pytest.mark.parametrize(
    ("reason", "means"),
    [
        ("STOP", "eos"),
        ("eos_token", "eos"),
        ("MAX_TOKENS", "max_new_tokens"),
        ("model_length", "max_context"),
        ("context_window_exceeded", "max_context"),
        ("content_filter", "other"),
    ],
)
def test_a_services_words_for_an_end_have_one_of_ours(reason: str, means: str) -> None:
    assert finish_reason(reason) == means


@pytest.mark.parametrize(
    ("content", "text", "reasoning"),
    [
        (
            [
                {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
                {"type": "text", "text": "4"},
            ],
            "4",
            "hm",
        ),
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>4",
            "4",
            "hm",
        ),
        ("half \ud83d pair", "half \ufffd pair", None),
    ],
)
def test_thinking_parts_channels_and_half_characters(
    tmp_path: Path, content: Any, text: str, reasoning: str | None
) -> None:
    with serving(chat(content)) as service:
        made = answer(backend(service.url, tmp_path))
    assert made.text == text and made.backend_columns.get("reasoning") == reasoning


@pytest.mark.parametrize("around", ["{}\ndata: [DONE]\n", ": PROCESSING\n\n{}", "\ufeff{}"])
def test_json_between_marks_of_a_stream_is_read(tmp_path: Path, around: str) -> None:
    text = around.replace("{}", json.dumps(chat("4")))
    with serving(Reply(text=text)) as service:
        assert answer(backend(service.url, tmp_path)).text == "4"
        assert len(service.seen) == 1


def test_samples_that_share_a_request_count_their_own_tokens(tmp_path: Path) -> None:
    body = chat("a", "b", "c")
    for number, choice in enumerate(body["choices"], 1):
        choice["logprobs"] = {"content": [TOKEN] * number}
    with serving(body) as service:
        asked = [request("q", group=Group("q", i, 3)) for i in range(3)]
        found = ask(backend(service.url, tmp_path, "backend.samples_per_request=true"), *asked)
        assert len(service.seen) == 1
    assert [one.count for one in found if not isinstance(one, BaseException)] == [1, 2, 3]


def test_a_damaged_file_of_the_response_cache_is_asked_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    line = f"backend.response_cache={tmp_path / 'kept'}"
    with serving(chat("fine")) as service:
        for data in ("", '{"token_ids": [', "{}"):
            answer(backend(service.url, tmp_path, line))
            (file,) = (tmp_path / "kept").rglob("*.json")
            file.write_text(data)
        assert answer(backend(service.url, tmp_path, line)).text == "fine"
        assert len(service.seen) == 4
    assert "is damaged" in caplog.text


def test_a_damaged_file_of_findings_is_asked_anew(tmp_path: Path) -> None:
    findings = Findings(tmp_path)
    findings.put({"a": 1}, True)
    for data in (b"", b'{"a', b"[1]", b"\xff"):
        findings.path.write_bytes(data)
        assert findings.get({"a": 1}) is None
    findings.put({"a": 1}, False)
    assert findings.get({"a": 1}) is False


def test_the_templates_own_arguments_are_part_of_a_prompts_identity(
    tmp_path: Path, smollm2: Path
) -> None:
    def identity(arguments: dict[str, Any]) -> dict[str, Any]:
        spec = ModelSpec(path="m", tokenizer=str(smollm2), template_kwargs=arguments)
        return PromptText(spec, tmp_path).identity()

    assert identity({"enable_thinking": True}) != identity({"enable_thinking": False})
