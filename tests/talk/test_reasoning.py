"""Reasoning is told from the answer while both come, whoever writes it."""

import io
import random
from collections.abc import Iterator

import pytest
from rich.console import Console

from launch import api
from launch.talk.conversation import Conversation
from launch.talk.loop import Chat
from launch.talk.reasoning import ReasoningSplit
from launch.talk.screen import Screen
from pipeline.protocols import Cue
from tests.gateways.service import Body, Reply, Service, serving

CUE = Cue("wait", "Wait, let me look again.")
USAGE = {"prompt_tokens": 11, "completion_tokens": 9, "total_tokens": 20, "cost": 0.000125}
USAGE |= {"completion_tokens_details": {"reasoning_tokens": 4}}


def split(text: str, prompt: str, seed: int) -> tuple[str, str]:
    """Reasoning and answer of a text that comes in pieces of random lengths."""
    draw, parts = random.Random(seed), ReasoningSplit(prompt)
    found: list[tuple[str, bool]] = []
    while text:
        length = draw.randint(1, 9)
        found += parts.take(text[:length])
        text = text[length:]
    found += parts.rest()
    joined = [
        "".join(piece for piece, aside in found if aside is wanted) for wanted in (True, False)
    ]
    return joined[0], joined[1]


@pytest.mark.parametrize(
    ("text", "prompt", "reasoning", "answer"),
    [
        ("<think>\nso </th 1 < 2</think>\n\nyes <think>", "", "so </th 1 < 2", "yes <think>"),
        ("so it is</think> yes", "user: why\n<think>\n", "so it is", "yes"),
        ("  a tag, <think>, in a text</think>", "", "", "  a tag, <think>, in a text</think>"),
        ("<thi", "", "", "<thi"),
        ("<think>cut </thi", "", "cut </thi", ""),
        (
            "<|channel|>analysis<|message|>7 * 8"
            "<|end|><|start|>assistant<|channel|>final<|message|>56",
            "",
            "7 * 8",
            "56",
        ),
    ],
)
def test_tags_part_reasoning_from_the_answer_wherever_the_pieces_break(
    text: str, prompt: str, reasoning: str, answer: str
) -> None:
    for seed in range(20):
        assert split(text, prompt, seed) == (reasoning, answer)


def delta(**fields: str) -> Body:
    return {"id": "c", "model": "m-1", "choices": [{"index": 0, "delta": fields}]}


def streamed(*deltas: Body) -> Reply:
    end = {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    return Reply(events=[*deltas, end, {"choices": [], "usage": USAGE}, "data: [DONE]\n\n"])


@pytest.fixture
def shown(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What a chat over a service shows, which answers one line with the given events."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    with serving(streamed(*request.param)) as service:
        yield said_over(service)


def said_over(service: Service) -> str:
    line = ("backend=local_server", "backend.deployment=m", "backend.prefill=no")
    url = f"backend.connection.url={service.url}"
    with api.load("smollm2", *line, url, "run.cache_dir=null") as session:
        file = io.StringIO()
        chat = Chat(Conversation(session, CUE), Screen(Console(file=file, width=100)))
        chat.line("hello")
        return file.getvalue()


@pytest.mark.parametrize(
    "shown",
    [
        (delta(reasoning_content="be"), delta(reasoning_content="cause"), delta(content="so")),
        (delta(reasoning="be"), delta(reasoning="cause"), delta(content="s"), delta(content="o")),
        (delta(content="<th"), delta(content="ink>because</think>\n"), delta(content="so")),
    ],
    indirect=True,
)
def test_reasoning_of_a_service_is_shown_apart_then_usage_and_cost(shown: str) -> None:
    lines = shown.splitlines()
    assert lines[:2] == ["[reasoning] because", "[answer] so"]
    assert lines[2].startswith("[9 tokens, 4 of them reasoning, 11 in the prompt, ")
    assert lines[2].endswith(", 0.000125 USD]") and len(lines) == 3


@pytest.mark.parametrize("shown", [(delta(content="s"), delta(content="o"))], indirect=True)
def test_an_answer_without_reasoning_has_no_marks(shown: str) -> None:
    assert shown.startswith("so\n[9 tokens")
