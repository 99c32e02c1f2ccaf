"""Text flows: it comes step by step, in whole characters, and a long chat does not grow."""

import gc
import json
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from components.backends.hf.backend import HfBackend
from launch import api
from launch.talk.conversation import Conversation
from launch.talk.session import Session
from pipeline.protocols import Cue
from tests.fakes.tiny_models import tiny
from tests.gateways.service import Reply, Service

CUE = Cue("wait", "Wait, let me look again.")
PATIENCE = 60.0  # seconds until a step that nobody heard of is a failure
BYTES = 600  # of Python objects for a token that is kept: its id, entropy, logprob, hashes
AHEAD = 2  # steps that a decoder may be ahead of its reader


class Lockstep:
    """Lets a step begin only when the text of those before it, `AHEAD` apart, has been read."""

    def __init__(self) -> None:
        self.steps = self.read = self.ahead = self.steps_before_first = 0
        self._changed = threading.Condition()

    def begin(self, *_: Any) -> None:
        with self._changed:
            caught_up = self._changed.wait_for(lambda: self.steps - self.read < AHEAD, PATIENCE)
            assert caught_up, f"{self.steps} steps were made, and {self.read} pieces read"
            self.steps += 1
            self.ahead = max(self.ahead, self.steps - self.read)

    def note(self) -> None:
        with self._changed:
            self.read += 1
            self.steps_before_first = self.steps_before_first or self.steps
            self._changed.notify_all()


@pytest.mark.parametrize("decoder", ["slots", "generate"])
def test_each_step_of_a_model_is_read_before_the_next_but_one_begins(decoder: str) -> None:
    line = ("quantization=fp32", "sampling=greedy", "sampling.max_new_tokens=40")
    with api.load("mini_llm_tiny", *line, f"backend.decoder={decoder}") as model:
        wanted = model.generate("The import statement")
        assert wanted.text.isascii()
        backend, lockstep = model.backend, Lockstep()
        assert isinstance(backend, HfBackend)
        backend.model.get_input_embeddings().register_forward_pre_hook(lockstep.begin)
        stream, pieces = model.stream("The import statement"), []
        for text in stream:
            pieces.append(text)
            lockstep.note()
    assert "".join(pieces) == wanted.text == stream.generation.text
    assert lockstep.steps_before_first <= AHEAD
    assert len(pieces) > 30 and lockstep.steps >= len(pieces)


def test_each_event_of_a_service_is_read_before_the_next_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lockstep = Lockstep()

    def events() -> Iterator[Any]:
        for word in ("one ", "two ", "three ", "four"):
            lockstep.begin()
            yield {"choices": [{"index": 0, "delta": {"content": word}}]}
        yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        yield "data: [DONE]\n\n"

    reply = Reply(events=events())  # type: ignore[arg-type]
    with Service(lambda seen: reply) as service:
        line = ("backend=local_server", "backend.deployment=m", "backend.prefill=no")
        url = f"backend.connection.url={service.url}"
        with api.load("smollm2", *line, url, "run.cache_dir=null") as model:
            pieces = []
            for text in model.stream("Count."):
                pieces.append(text)
                lockstep.note()
    assert pieces == ["one ", "two ", "three ", "four"] and lockstep.ahead <= AHEAD


@pytest.mark.parametrize("model", ["bdh_tiny", "smollm2"])
def test_a_character_of_several_bytes_comes_whole(model: str) -> None:
    """The form makes the model write characters of two, three and four bytes, id by id."""
    wanted = "é日本😀 ¼ 👩‍🚀"
    line = (f"sampling.regex='{wanted}'", "sampling.max_new_tokens=60", "quantization=fp32")
    with api.load(model, *line) as session:
        stream = session.stream("Write.")
        pieces = list(stream)
        assert len(stream.generation.token_ids) > len(pieces) > 5
    assert "".join(pieces) == stream.generation.text == wanted
    assert all(set(piece) <= set(wanted) for piece in pieces)


def test_a_turn_computes_only_what_is_new(smollm2: Path, tmp_path: Path) -> None:
    with tiny_chat(smollm2, tmp_path, 8) as session:
        talk = Conversation(session, CUE)
        first = talk.ask("red green blue", unseen).generations[0]
        before = session.backend.describe()
        second = talk.ask("and yellow", unseen).generations[0]
        after = session.backend.describe()
    new = second.prompt_tokens - first.prompt_tokens - first.count
    assert after["prefilled_tokens"] - before["prefilled_tokens"] <= new + 1


def unseen(text: str, phase: str) -> None:
    """Show nothing."""


def tiny_chat(tokenizer: Path, folder: Path, cap: int) -> Session:
    path = tiny("llama", tokenizer, folder / "m", max_position_embeddings=8192)
    caps = (f"sampling.max_new_tokens={cap}", f"sampling.min_new_tokens={cap}")
    return api.load(str(path), "quantization=fp32", "backend.batch_size=1", *caps)


def grown(session: Session, warm: int, turns: int) -> tuple[int, int, int]:
    """Bytes of Python objects and of the process that `turns` turns add, and tokens of them."""
    talk, process = Conversation(session, CUE), psutil.Process()
    for _ in range(warm):
        talk.ask("and then?", unseen)
    gc.collect()
    before, tokens = process.memory_info().rss, size_of(talk)
    tracemalloc.start()
    try:
        for _ in range(turns):
            talk.ask("and then?", unseen)
        gc.collect()
        objects = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    return objects, process.memory_info().rss - before, size_of(talk) - tokens


def size_of(talk: Conversation) -> int:
    return talk.last.generations[0].prompt_tokens if talk.last else 0


def test_turns_of_a_chat_leave_little_behind(smollm2: Path, tmp_path: Path) -> None:
    with tiny_chat(smollm2, tmp_path, 8) as session:
        objects, _, tokens = grown(session, warm=4, turns=12)
    print(json.dumps({"objects": objects, "tokens": tokens}))
    assert tokens > 150 and objects < BYTES * tokens


@pytest.mark.slow
def test_memory_is_flat_over_a_chat_of_four_thousand_tokens(smollm2: Path, tmp_path: Path) -> None:
    with tiny_chat(smollm2, tmp_path, 60) as session:
        objects, process, tokens = grown(session, warm=4, turns=57)
    print(json.dumps({"objects": objects, "process": process, "tokens": tokens}))
    assert tokens > 4000 and objects < BYTES * tokens and process < 2**25
