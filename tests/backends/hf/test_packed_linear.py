"""Reordered weights: the same products, and no weight twice in memory without need."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from components.backends.hf.slots import packed_linear as packed
from tests.fakes.tiny_models import tiny

IDS = torch.arange(40)[None] * 97 + 3


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch has no products with reordered weights")
    monkeypatch.setattr(packed, "packs", lambda: True)


def loaded(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return model.eval()


@torch.inference_mode()
def test_a_model_with_reordered_weights_gives_the_same_logits(
    able: None, smollm2: Path, tmp_path: Path
) -> None:
    model = loaded(tiny("qwen2", smollm2, tmp_path), torch.bfloat16)
    expected = model(input_ids=IDS).logits.float()
    layers = sum(isinstance(module, torch.nn.Linear) for module in model.modules())
    assert packed.pack(model) == layers
    for rows in (40, 7, 1):
        found = model(input_ids=IDS[:, :rows]).logits.float()
        assert float((found - expected[:, :rows]).norm() / expected[:, :rows].norm()) < 0.02


def test_a_weight_is_kept_as_it_was_only_where_others_read_it(
    able: None, smollm2: Path, tmp_path: Path
) -> None:
    model = loaded(tiny("llama", smollm2, tmp_path, tie_word_embeddings=True), torch.bfloat16)
    packed.pack(model)
    assert not model.get_input_embeddings().weight.is_mkldnn
    layers = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    assert sum(layer.weight.is_mkldnn for layer in layers) == len(layers) - 1
    assert all(layer.packed.is_mkldnn for layer in layers)


def test_float32_models_stay_as_they_are(able: None, smollm2: Path, tmp_path: Path) -> None:
    assert packed.pack(loaded(tiny("llama", smollm2, tmp_path), torch.float32)) == 0
