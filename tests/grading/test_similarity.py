"""Sentence embeddings: any encoder in a local folder, mean pooling, no code of the folder's."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from components.grading.similarity import SentenceEmbedding
from pipeline.spec import SpecError
from tests.fakes.tiny_models import tiny_encoder

TEXTS = ["Lisbon", "It is the city of Lisbon, I think.", "{__class__} {{ 1 }} [[[["]


@pytest.fixture
def folder(smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A random encoder without a word on pooling; nothing else can be reached."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tiny_encoder(smollm2, tmp_path / "encoder")


def test_a_plain_encoder_is_pooled_by_the_mean_over_its_tokens(folder: Path) -> None:
    embedding = SentenceEmbedding(str(folder), "cpu")
    embedding.read([*TEXTS, TEXTS[0]])  # together, so that the shorter ones are padded
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    vectors = []
    with torch.no_grad():
        for text in TEXTS:  # alone, so that none is
            states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
            vectors.append(states.mean(0) / states.mean(0).norm())
    for one, vector in zip(TEXTS, vectors, strict=True):
        for other, second in zip(TEXTS, vectors, strict=True):
            assert embedding.cosine(one, other) == pytest.approx(float(vector @ second), abs=1e-4)
    assert embedding.truncated == 0
    assert embedding.about()["pooling"] == "mean"


def test_a_text_that_the_model_cannot_read_whole_is_counted(folder: Path) -> None:
    embedding = SentenceEmbedding(str(folder), "cpu")
    embedding.read(["short", "word " * 3000])
    assert embedding.truncated == 1


def test_a_model_that_names_code_of_its_own_is_refused(folder: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    shutil.copytree(folder, foreign)
    module = {"idx": 0, "name": "0", "path": "", "type": "tests.fakes.toy_task.Toy"}
    (foreign / "modules.json").write_text(json.dumps([module]))
    with pytest.raises(SpecError, match="--embedding must name a sentence-embedding model"):
        SentenceEmbedding(str(foreign), "cpu")


def test_a_name_that_is_no_model_is_refused(folder: Path, tmp_path: Path) -> None:
    for name in ("./nowhere", str(tmp_path), "nobody/nothing"):
        with pytest.raises(SpecError, match="--embedding must name"):
            SentenceEmbedding(name, "cpu")
