"""What of `Sampling` is refused, what a request and a row get of it, and what is fingerprinted."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from components.backends.echo import Echo
from launch.config.compose import to_spec
from pipeline.protocols import FILTERS, STRATEGIES, Generation, Request
from pipeline.run.executor import execute
from pipeline.run.point import prepare
from pipeline.spec import CueText, ModelSpec, Run, RunSpec, Sampling, SpecError
from pipeline.store.files import read_lines
from tests.fakes.configs import composed
from tests.fakes.toy_task import ToyTask

MODEL = ModelSpec(name="echo", path="echo")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"temperature": -1.0}, "temperature must be 0 \\(greedy\\) or more"),
        ({"top_p": 0.0}, "top_p must lie in \\(0, 1\\], got 0.0"),
        ({"top_k": -1}, "top_k must be 0 \\(off\\) or more"),
        ({"max_new_tokens": 0}, "max_new_tokens must be 1 or more, got 0"),
        ({"typical_p": 0.0}, "typical_p must lie in \\(0, 1\\]"),
        ({"presence_penalty": 2.5}, "presence_penalty must lie in \\[-2, 2\\]"),
        ({"frequency_penalty": -3.0}, "frequency_penalty must lie in \\[-2, 2\\]"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size must be 0 \\(off\\) or more"),
        ({"min_new_tokens": 9, "max_new_tokens": 8}, "min_new_tokens must be 0 or more, and at"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias must map token ids, 0 or more, to numbers"),
        ({"logit_bias": {1: 101.0}}, "logit_bias must map token ids, 0 or more, to numbers"),
        ({"num_beams": 0}, "num_beams must be 1 \\(no beam search\\) or more"),
        ({"num_beams": 2}, "temperature must be 0 with sampling.num_beams above 1.*greedy"),
        (
            {"num_beams": 2, "temperature": 0.0, "num_samples": 3},
            "num_samples must be at most sampling.num_beams=2",
        ),
        ({"length_penalty": 2.0}, "length_penalty must be left out without a beam search"),
        ({"early_stopping": True}, "early_stopping must be left out without a beam search"),
        ({"early_stopping": "soon"}, "early_stopping must be true, false or never"),
        ({"regex": ""}, "regex must not be empty"),
        ({"regex": "a", "json_schema": {}}, "regex must be null where sampling.json_schema"),
        ({"regex": "a", "min_new_tokens": 3}, "min_new_tokens must be 0 with sampling.regex"),
        (
            {"json_schema": {}, "num_beams": 2, "temperature": 0.0},
            "num_beams must be 1 with sampling.json_schema",
        ),
        ({"json_schema": 3}, "json_schema must be a mapping, or the name of a file"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_with_its_key(
    fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(SpecError, match=rf"sampling\.{said}"):
        Sampling(**fields)


def test_a_command_line_sets_every_strategy(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps({"type": "object"}))
    words = {
        "typical_p": ("0.9", 0.9),
        "logit_bias": ("{2: -100, 873: 5}", {2: -100.0, 873: 5.0}),
        "regex": ('"[A-D]{1,2}"', "[A-D]{1,2}"),
        "json_schema": (str(path), {"type": "object"}),
    }
    for name, (word, value) in words.items():
        spec = to_spec(composed("task=math", "backend=echo", f"sampling.{name}={word}"))
        assert getattr(spec.sampling, name) == value
    inline = "sampling.json_schema={type: object, required: [a]}"
    spec = to_spec(composed("task=math", "backend=echo", inline))
    assert spec.sampling.json_schema == {"type": "object", "required": ["a"]}
    beams = ("sampling.num_beams=4", "sampling.early_stopping=never", "sampling.length_penalty=2")
    spec = to_spec(composed("task=math", "backend=echo", "sampling=greedy", *beams))
    assert (spec.sampling.num_beams, spec.sampling.early_stopping) == (4, "never")


@pytest.mark.parametrize("text", ["[1]", "{", None])
def test_a_file_that_holds_no_schema_is_named(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    if text is not None:
        path.write_text(text)
    config = composed("task=math", "backend=echo", f"sampling.json_schema={path}")
    with pytest.raises(SpecError, match=r"sampling\.json_schema must .*schema\.json"):
        to_spec(config)


class Recording(Echo):
    """An echo that claims to honour everything, and keeps what it was told and asked."""

    capabilities = replace(Echo.capabilities, filters=(*FILTERS, *STRATEGIES))

    def __init__(self) -> None:
        super().__init__(MODEL)
        self.expected: list[Sampling] = []
        self.asked: list[Request] = []

    def expect(self, sampling: Sampling) -> None:
        self.expected.append(sampling)

    async def generate(self, request: Request) -> Generation:
        self.asked.append(request)
        return await super().generate(request)


def test_a_format_holds_for_the_phase_that_answers_in_every_pass(tmp_path: Path) -> None:
    sampling = Sampling(regex="[0-9]+", presence_penalty=0.5)
    cues = {"wait": CueText("Wait.")}
    run = Run(dir=str(tmp_path), limit=1)
    backend = Recording()
    point = prepare(RunSpec({}, {}, {}, MODEL, sampling, cues, run), ToyTask(), backend)
    assert backend.expected == [sampling], "told before it is entered"
    (session,) = asyncio.run(execute([point], backend))
    found = [(each.sampling.regex, each.sampling.presence_penalty) for each in backend.asked]
    assert found == [(None, 0.5), ("[0-9]+", 0.5)] * 2
    ((_, row),) = read_lines(session.point.rows_path)
    assert row is not None and (row["regex"], row["presence_penalty"]) == ("[0-9]+", 0.5)
    assert not {*STRATEGIES} - {"regex", "presence_penalty"} & set(row)


def test_a_format_is_refused_where_the_model_writes_the_tags_itself() -> None:
    for name, value in {"regex": "a", "json_schema": {"type": "object"}}.items():
        asked = RunSpec({}, {}, {}, MODEL, Sampling(**{name: value}), {}, Run(phases="single"))
        with pytest.raises(
            SpecError, match=rf"sampling\.{name} must be null for task toy in a sin"
        ):
            prepare(asked, ToyTask(), Recording())


def test_a_strategy_is_in_the_fingerprint_only_where_it_is_on() -> None:
    def identity(**fields: Any) -> dict[str, Any]:
        asked = RunSpec({}, {}, {}, MODEL, Sampling(**fields), {}, Run())
        return prepare(asked, ToyTask(), Recording()).identity

    plain = identity()
    names = {key for key in plain if key.startswith("sampling.")}
    assert names == {"sampling.temperature", *(f"sampling.{name}" for name in FILTERS)}
    assert identity(logit_bias={3: 1.0})["sampling.logit_bias"] == {"3": 1.0}
    schema = {"type": "object"}
    assert identity(json_schema=schema) == plain | {"sampling.json_schema": schema}
