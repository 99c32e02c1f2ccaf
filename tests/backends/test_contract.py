"""What `pipeline.protocols.Backend` promises, held against every backend: one line for each."""

import asyncio
import importlib.util
import json
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from launch import api
from launch.config.compose import component_class
from launch.config.setup import RunSetup, setup_of
from launch.config.words import CONF
from pipeline.protocols import (
    FILTERS,
    STRATEGIES,
    TRUNCATED,
    Backend,
    Capabilities,
    Generation,
    Group,
    Message,
    Prompt,
    PromptTooLongError,
    Request,
    TokenScores,
)
from pipeline.run.point import refuse_what_it_cannot
from pipeline.spec import Sampling, SpecError
from tests.fakes.configs import composed
from tests.fakes.entered import VLLM, Entered
from tests.gateways.service import Reply, Seen, Service, chat, refusal

Outcome = TypeVar("Outcome")
WORDS = "red green blue white black brown grey pink gold teal".split()


@dataclass(frozen=True)
class Line:
    """One backend under test: the words that compose it, and the service that it asks, if any."""

    words: tuple[str, ...]
    service: Service | None = None
    reads_any_length: bool = False
    shares_vllm: bool = False  # entering takes long: it is done once for most tests
    entered: Entered | None = None


def echo(tiny_llama: Callable[..., Path]) -> Iterator[Line]:
    yield Line(("backend=echo",), reads_any_length=True)


def hf(tiny_llama: Callable[..., Path]) -> Iterator[Line]:
    model = tiny_llama(max_position_embeddings=512)
    yield Line((*HF, f"model.path={model}", "backend.slots=4"))


def openai_api(tiny_llama: Callable[..., Path]) -> Iterator[Line]:
    with Service(obliging) as service:
        words = ("backend=local_server", f"backend.endpoint={service.url}", "backend.prefill=yes")
        yield Line((*words, "backend.top_logprobs=0"), service)


def vllm(tiny_llama: Callable[..., Path]) -> Iterator[Line]:
    yield Line(VLLM, shares_vllm=True)


HF = ("backend=hf", "backend.device=cpu", "backend.threads=1", "model=local", "quantization=fp32")
BACKENDS = [echo, hf, openai_api]
if importlib.util.find_spec("vllm") is not None:  # in an environment of its own: make test-vllm
    BACKENDS.append(vllm)
OPTIONS = [
    path for path in sorted((CONF / "backend").rglob("*.yaml")) if "_target_" in path.read_text()
]
# A value of every filter and strategy that is not the one that switches it off.
ON: dict[str, Any] = {
    "top_p": 0.5,
    "top_k": 3,
    "min_p": 0.1,
    "repetition_penalty": 1.2,
    "typical_p": 0.5,
    "presence_penalty": 1.0,
    "frequency_penalty": 1.0,
    "no_repeat_ngram_size": 2,
    "min_new_tokens": 2,
    "logit_bias": {3: 1.0},
    "num_beams": 2,
    "regex": "a+",
    "json_schema": {"type": "object"},
}


def obliging(seen: Seen) -> Reply:
    """A service whose answers hang on the request alone, as a seeded model's do."""
    text = json.dumps(seen.body["messages"])
    if len(text) > 4000:
        return Reply(refusal("too long", "messages", "context_length_exceeded"), 400)
    draw = random.Random(text + str(seen.body["seed"]))
    words = [draw.choice(WORDS) for _ in range(8)]
    body = chat(" ".join(words))
    body["usage"]["completion_tokens"] = 8
    return Reply(body)


@pytest.fixture(scope="module", params=BACKENDS, ids=lambda backend: str(backend.__name__))
def line(
    request: pytest.FixtureRequest,
    tiny_llama: Callable[..., Path],
    shared_vllm: Callable[[], Entered],
) -> Iterator[Line]:
    with contextmanager(request.param)(tiny_llama) as made:
        yield replace(made, entered=shared_vllm()) if made.shares_vllm else made


@cache
def setup(words: tuple[str, ...]) -> RunSetup:
    return setup_of(composed("task=crossword", *words), words)


def backend_of(line: Line) -> Backend:
    return api.open_backend(setup(line.words))


def using(line: Line, work: Callable[[Backend], Awaitable[Outcome]]) -> Outcome:
    """What `work` returns, given the entered backend."""
    if line.entered is not None:
        return line.entered.run(work)

    async def entered() -> Outcome:
        async with backend_of(line) as backend:
            return await work(backend)

    return asyncio.run(entered())


def request(number: int = 0, text: str = "", **fields: Any) -> Request:
    prompt = Prompt((Message("user", (text or f"say {' '.join(WORDS)} and {number}",)),))
    sampling = Sampling(temperature=1.0, top_p=1.0)
    made = Request(prompt, (), 24, sampling, 1000 + number, number, Group(str(number), 0, 1))
    return replace(made, **fields)


def said(generation: Generation) -> tuple[Any, ...]:
    """What must not depend on company, order or attempt."""
    return generation.text, generation.tail, generation.token_ids, generation.finish_reason


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.stem)
def test_every_option_of_conf_backend_is_a_backend_that_is_held_here(option: Path) -> None:
    target = yaml.safe_load(option.read_text(encoding="utf-8"))["_target_"]
    assert Backend in component_class("backend", target).__mro__
    kind = target.removeprefix("components.backends.").split(".")[0]
    own = Path(__file__).with_name(f"test_{option.stem}.py")  # where a line here cannot run
    assert kind in {backend.__name__ for backend in BACKENDS} or own.is_file()


def test_what_it_says_about_itself_is_known_without_loading_or_asking(line: Line) -> None:
    asked = len(line.service.seen) if line.service else 0
    backend, other = backend_of(line), backend_of(line)
    assert isinstance(backend.name, str) and isinstance(backend.capabilities, Capabilities)
    assert set(backend.capabilities.filters) <= {*FILTERS, *STRATEGIES}
    assert backend.capacity >= 1 and isinstance(backend.quantization, str)
    assert json.loads(json.dumps(backend.identity())) == other.identity()
    assert isinstance(backend.identity()["backend"], str)
    json.dumps(backend.describe())
    assert "say something" in backend.preview(request(text="say something").prompt)
    assert line.service is None or len(line.service.seen) == asked


def test_answers_come_to_who_asked_and_hang_on_the_request_alone(line: Line) -> None:
    async def work(backend: Backend) -> list[list[Generation]]:
        asked = [request(number) for number in range(6)]
        together = await asyncio.gather(*map(backend.generate, asked))
        alone = [await backend.generate(each) for each in reversed(asked)]
        return [together, alone[::-1]]

    together, alone = using(line, work)
    assert [said(each) for each in together] == [said(each) for each in alone]
    assert len({each.text for each in together}) > 1, "another seed, another text"


def test_ids_are_scored_as_they_were_drawn_where_it_says_that_it_scores(line: Line) -> None:
    if not backend_of(line).capabilities.scores:
        return

    async def work(backend: Backend) -> tuple[Generation, TokenScores]:
        asked = request(3)
        drawn = await backend.generate(asked)
        (scores,) = await backend.score([backend.force(asked.prompt, drawn)])
        return drawn, scores

    drawn, scores = using(line, work)
    assert scores.entropies == pytest.approx(drawn.entropies, abs=1e-4)
    assert scores.logprobs == pytest.approx(drawn.logprobs, abs=1e-4)


def test_counts_and_series_fit_the_text(line: Line) -> None:
    able = backend_of(line).capabilities
    generation = using(line, lambda backend: backend.generate(request(1)))
    assert 0 < generation.count <= 24 and generation.prompt_tokens > 0
    assert generation.text and generation.error is None
    if generation.finish_reason in TRUNCATED and generation.token_ids:
        assert generation.count == 24
    if able.continues_ids:
        ends = generation.ends or []
        assert len(generation.token_ids) == generation.count == len(ends)
        assert ends == sorted(ends) and ends[-1] <= len(generation.spelled)
    for has, series in (
        (able.entropy, generation.entropies),
        (able.logprobs, generation.logprobs),
    ):
        assert not has or len(series or ()) == generation.count
    unasked = using(line, lambda backend: backend.generate(request(1, entropy=False)))
    assert said(unasked) == said(generation)


def test_a_stop_string_ends_the_text_and_is_its_tail(line: Line) -> None:
    async def work(backend: Backend) -> tuple[Generation, Generation]:
        free = await backend.generate(request(2))
        stop = free.text[len(free.text) // 2 :][:3]
        return free, await backend.generate(request(2, stop=(stop,)))

    if line.words == ("backend=echo",):
        pytest.skip("echo makes its stop strings itself: they do not come up in its text")
    free, stopped = using(line, work)
    stop = free.text[len(free.text) // 2 :][:3]
    assert stopped.finish_reason == "stop_token"
    assert stopped.text == free.text[: free.text.index(stop)]
    assert stopped.tail.startswith(stop)


def test_text_that_is_handed_on_adds_up(line: Line) -> None:
    pieces: list[str] = []
    generation = using(line, lambda backend: backend.generate(request(3, on_token=pieces.append)))
    assert "".join(pieces) == generation.text
    assert len(pieces) > 1 or line.words[0] != HF[0], "hf hands on tokens as they come"


def test_a_cancelled_request_disturbs_no_other(line: Line) -> None:
    async def work(backend: Backend) -> tuple[Generation, Generation, Generation]:
        undisturbed = await backend.generate(request(4))
        dropped = asyncio.create_task(backend.generate(request(5, cap=400)))
        kept = asyncio.create_task(backend.generate(request(4)))
        await asyncio.sleep(0)
        dropped.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dropped
        backend.release(5)
        return undisturbed, await kept, await backend.generate(request(4))

    undisturbed, kept, after = using(line, work)
    assert said(undisturbed) == said(kept) == said(after)


def test_a_released_trace_may_be_asked_again_and_an_unknown_one_released(line: Line) -> None:
    async def work(backend: Backend) -> tuple[Generation, Generation]:
        first = await backend.generate(request(6))
        backend.release(6)
        backend.release(999)
        return first, await backend.generate(request(6))

    first, again = using(line, work)
    assert said(first) == said(again)


def test_it_may_be_entered_again(line: Line) -> None:
    async def work() -> list[Generation]:
        backend = backend_of(line)
        generations = []
        for _ in range(2):
            async with backend:
                generations.append(await backend.generate(request(7)))
                json.dumps(backend.describe())
        return generations

    first, second = asyncio.run(work())
    assert said(first) == said(second)


def test_a_turn_that_the_prompt_opens_is_gone_on_with(line: Line) -> None:
    able = backend_of(line).capabilities
    assert able.assistant_prefill, "a line without it belongs into a test of its own"

    async def work(backend: Backend) -> tuple[Generation, Generation]:
        asked = request(8)
        first = await backend.generate(asked)
        prefill = ("<think>\n", first, "</think>\n")
        return first, await backend.generate(
            replace(asked, prompt=replace(asked.prompt, prefill=prefill))
        )

    first, second = using(line, work)
    assert second.prompt_tokens > first.prompt_tokens or line.service
    if able.continues_ids and second.prompt_ids is not None:
        ids = first.token_ids[:-1] if first.finish_reason == "eos" else first.token_ids
        places = range(len(second.prompt_ids) - len(ids) + 1)
        assert any(second.prompt_ids[at : at + len(ids)] == ids for at in places)


def test_a_filter_that_it_does_not_take_is_refused_before_anything_is_loaded(line: Line) -> None:
    backend, spec = backend_of(line), setup(line.words).spec
    off: dict[str, Any] = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "num_samples": 1}
    assert {*ON, "length_penalty", "early_stopping"} == {*FILTERS, *STRATEGIES}  # two need beams
    for name, value in ON.items():
        asked = replace(spec, sampling=Sampling(**off | {name: value}))
        if name in backend.capabilities.filters:
            refuse_what_it_cannot(asked, backend_of(line))
        else:
            with pytest.raises(SpecError, match=f"sampling.{name} must be"):
                refuse_what_it_cannot(asked, backend)


def test_a_prompt_that_is_too_long_fails_by_its_own_kind_of_error(line: Line) -> None:
    async def work(backend: Backend) -> tuple[Any, Generation]:
        long = request(9, "word " * 1500)
        (failed,) = await asyncio.gather(backend.generate(long), return_exceptions=True)
        return failed, await backend.generate(request(9))

    failed, after = using(line, work)
    assert after.text
    assert isinstance(failed, Generation if line.reads_any_length else PromptTooLongError)
