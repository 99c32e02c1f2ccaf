"""Text that a regex or a schema shapes, on real models, and bytes that come one at a time."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from components.models.architectures.byte_tokenizer import byte_tokenizer
from pipeline.spec import SpecError
from tests.fakes.hf_requests import answers, backend, request
from tests.fakes.slots import same

Maker = Callable[..., Path]
BOTH = ("generate", "slots")
TEXT = "Grüße, 世界 😀 end"
SCHEMA = {
    "type": "object",
    "properties": {
        "answer": {"type": "string", "maxLength": 30},
        "sure": {"type": "integer", "minimum": 0, "maximum": 100},
        "steps": {"type": "array", "items": {"enum": ["read", "think"]}, "maxItems": 3},
    },
    "required": ["answer", "sure", "steps"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def byte_model(tiny_llama: Maker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that reads and writes bytes, and has no end of sequence."""
    made = tiny_llama(vocab_size=256, eos_token_id=None, bos_token_id=None, pad_token_id=None)
    folder = tmp_path_factory.mktemp("bytes") / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes((made / name).read_bytes())
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("decoder", BOTH)
def test_bytes_are_streamed_as_whole_characters_and_end_with_the_format(
    decoder: str, byte_model: Path
) -> None:
    pieces: list[str] = []
    asked = request(0, "Hi", cap=80, regex=re.escape(TEXT), on_token=pieces.append)
    row = answers(backend(byte_model, decoder=decoder), [asked])[0]
    assert bytes(row.token_ids).decode() == row.text == TEXT and row.finish_reason == "stop_token"
    assert [piece for piece in pieces if piece] == list(TEXT), "each as soon as it is whole"
    half = answers(
        backend(byte_model, decoder=decoder),
        [request(0, "Hi", cap=3, regex=re.escape(TEXT), on_token=pieces.append)],
    )[0]
    assert (half.text, half.finish_reason) == ("Gr\ufffd", "max_new_tokens")


def test_a_small_real_model_writes_json_that_fits_its_schema(smollm2: Path) -> None:
    questions = ("How many legs has a cat?", "Écris un mot.")
    asked = [
        request(n, question, cap=70, temperature=t, json_schema=SCHEMA)
        for n, question in enumerate(questions)
        for t in (0.0, 1.3)
    ]
    rows = answers(backend(smollm2, decoder="slots"), [*asked, request(0, questions[0], cap=9)])
    free = rows.pop()
    for row in rows:
        assert row.finish_reason in ("stop_token", "eos"), row.text
        fits(json.loads(row.text))
    assert len({row.text for row in rows}) > 2
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(free.text)


def fits(found: Any) -> None:
    assert set(found) == set(SCHEMA["required"])
    assert isinstance(found["answer"], str) and len(found["answer"]) <= 30
    assert 0 <= found["sure"] <= 100 and isinstance(found["sure"], int)
    assert len(found["steps"]) <= 3 and set(found["steps"]) <= {"read", "think"}


def test_a_format_leaves_other_rows_alone(tiny_llama: Maker) -> None:
    plain = [request(n, cap=6) for n in range(2)]
    shaped = request(7, cap=6, regex="[a-f]{12}[0-9]{50}")
    alone = answers(backend(tiny_llama()), plain)
    found = [answers(backend(tiny_llama(), decoder=d), [*plain, shaped]) for d in BOTH]
    for rows in found:
        assert [row.token_ids for row in rows[:2]] == [row.token_ids for row in alone]
        assert re.match("[a-f0-9]+$", rows[2].text) and rows[2].finish_reason == "max_new_tokens"
    same(found[0][2], found[1][2])


def test_a_format_that_is_none_is_refused_before_anything_loads(tiny_llama: Maker) -> None:
    made = backend(tiny_llama())
    with pytest.raises(SpecError, match=r"sampling\.regex must be one that llguidance can follow"):
        made.expect(request(0, regex="[0-9").sampling)
