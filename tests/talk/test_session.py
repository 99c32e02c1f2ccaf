"""`launch.api.load`: a model to talk to from scripts, notebooks and asyncio."""

import asyncio
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from launch import api
from pipeline.spec import SpecError

CAPS = ("quantization=fp32", "sampling=greedy", "sampling.max_new_tokens=12")
TEXTS = ("Once upon a time", "The licence of the file")


def test_greedy_text_is_that_of_a_run(tmp_path: Path) -> None:
    texts = f"task.texts=[{', '.join(TEXTS)}]"
    line = ("task=prompts", "model=bdh_tiny", *CAPS, texts, f"run.root={tmp_path}")
    rows = list(api.run(api.compose(*line)).rows())
    with api.load("bdh_tiny", *CAPS) as model:
        batch = model.generate_batch(TEXTS)
        assert model.chat([{"role": "user", "content": TEXTS[0]}]).text == batch[0].text
        assert model.generate(TEXTS[1]).token_ids == batch[1].token_ids
    by_text = {row["problem"] if "problem" in row else row["question"]: row for row in rows}
    assert [by_text[text]["pass1"]["output"] for text in TEXTS] == [g.text.strip() for g in batch]


def test_a_stream_is_the_text_of_its_generation_in_whole_characters() -> None:
    with api.load("bdh_tiny", "sampling.temperature=1.5", "sampling.max_new_tokens=60") as model:
        stream = model.stream("Once")
        pieces = list(stream)
        assert len(pieces) > 5 and "".join(pieces) == stream.generation.text
        assert stream.generation.count == 60


def test_a_notebook_with_a_running_loop_and_asyncio_get_the_same() -> None:
    async def cell() -> None:
        with api.load("smollm2", "backend=echo") as model:
            plain = model.generate("red green blue")
            async_same = await model.agenerate("red green blue")
            assert plain.text == async_same.text != ""
        async with api.load("smollm2", "backend=echo") as model:
            assert (await model.agenerate_batch(["red green blue"]))[0].text == plain.text
            assert "".join([text async for text in model.stream("red green blue")]) == plain.text
            asked = [{"role": "user", "content": "red green blue"}]
            assert (await model.achat(asked)).text == plain.text

    asyncio.run(cell())


def test_a_closed_stream_ends() -> None:
    with api.load("smollm2", "backend=echo", "backend.seconds_per_token=100") as model:
        stream = model.stream("red green blue")
        stream.close()
        with pytest.raises(CancelledError):
            list(stream)


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(SpecError, match=r"sampling\.temperature must be 0"):
        api.load("smollm2", "backend=echo", "sampling.temperature=-1")
    with pytest.raises(SpecError, match="mode must be one of auto, chat, completion"):
        api.load("smollm2", "backend=echo", "mode=sing")
    with (
        pytest.raises(SpecError, match="run.budget must be null"),
        api.load("smollm2", "backend=echo", "run.budget=1"),
    ):
        pass
    with pytest.raises(SpecError, match="with load"):
        api.load("smollm2", "backend=echo").generate("x")
    with api.load("smollm2", "backend=echo") as model:
        with pytest.raises(SpecError, match=r"messages\[0\]\.role must be one of"):
            model.chat([{"role": "poet", "content": "x"}])
        with pytest.raises(SpecError, match="the prompt must not be empty"):
            model.generate("")
