"""A merged adapter computes what base and adapter compute, and is never added twice."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from components.models.checkpoint import resolve
from pipeline.spec import ModelSpec, SpecError
from tests.fakes.exports import exported, loaded, logits
from tests.fakes.tiny_models import tiny

Maker = Callable[..., Path]


@pytest.fixture(scope="module")
def base(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen2, whose query, key and value projections have biases."""
    return tiny("qwen2", smollm2, tmp_path_factory.mktemp("base"), initializer_range=0.1)


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor]:
    """An adapter of `base` with an update that matters, and the logits of both, not merged."""
    peft = pytest.importorskip("peft", reason="the extra `lora` is not installed")
    folder = tmp_path_factory.mktemp("adapter")
    torch.manual_seed(3)
    plain = AutoModelForCausalLM.from_pretrained(base)
    draw(plain, "bias", 0.5)
    plain.save_pretrained(base)
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    draw(model, "lora_B", 0.05)
    model.save_pretrained(folder)
    return folder, logits(model.train(False))


def draw(model: torch.nn.Module, called: str, spread: float) -> None:
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if called in name:
                weight.normal_(std=spread)


def words(base: Path, adapter: Path, *more: str) -> list[str]:
    return ["model=local", f"model.path={base}", f"model.adapter={adapter}", *more]


def test_merged_equals_unmerged_and_nothing_of_lora_is_left(
    base: Path, adapter: tuple[Path, torch.Tensor], tmp_path: Path
) -> None:
    where, expected = adapter
    out = tmp_path / "merged"
    record = exported(out, "to=merged", *words(base, where, "quantization=fp32"))
    with safe_open(out / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert not [name for name in names if "lora" in name]
    assert "model.layers.0.self_attn.q_proj.bias" in names
    found = logits(loaded(out))
    assert float((found - expected).abs().max()) < 1e-3
    assert float((logits(loaded(base)) - expected).abs().max()) > 0.1
    assert record["source"]["adapter"] in record["adapters"]


def test_an_adapter_is_not_merged_twice_nor_used_on_what_it_is_merged_into(
    base: Path, adapter: tuple[Path, torch.Tensor], tmp_path: Path
) -> None:
    where, _ = adapter
    out = tmp_path / "merged"
    exported(out, "to=merged", *words(base, where))
    with pytest.raises(SpecError, match=r"export\.json says that this adapter is merged"):
        exported(tmp_path / "again", "to=merged", *words(out, where))
    with pytest.raises(SpecError, match="merged into these weights already"):
        resolve(ModelSpec(path=str(out), adapter=str(where)), tmp_path / "cache")
    assert not (tmp_path / "again").exists()


def test_merging_into_quantized_weights_is_refused(
    base: Path, adapter: tuple[Path, torch.Tensor], tmp_path: Path
) -> None:
    pytest.importorskip("bitsandbytes", reason="the extra `quantization` is not installed")
    where, _ = adapter
    with pytest.raises(SpecError, match="must have quantization=none, fp32.*to=quantized merges"):
        exported(tmp_path / "m", "to=merged", *words(base, where, "quantization=bnb_nf4"))
    stored = tmp_path / "stored"
    exported(stored, "to=quantized", "quantization=bnb_nf4", "model=local", f"model.path={base}")
    with pytest.raises(SpecError, match=r"stored quantized \(bitsandbytes"):
        exported(tmp_path / "m", "to=merged", *words(stored, where))


def test_a_model_without_an_adapter_is_refused(base: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"needs an adapter.*take to=safetensors"):
        exported(tmp_path / "m", "to=merged", "model=local", f"model.path={base}")
    assert list(tmp_path.iterdir()) == []


def test_an_adapter_is_merged_before_weights_are_quantized_and_saved(
    base: Path, adapter: tuple[Path, torch.Tensor], tmp_path: Path
) -> None:
    pytest.importorskip("bitsandbytes", reason="the extra `quantization` is not installed")
    where, expected = adapter
    out = tmp_path / "q"
    exported(out, "to=quantized", "quantization=bnb_int8", *words(base, where))
    agree = (logits(loaded(out)).argmax(-1) == expected.argmax(-1)).float().mean()
    plain = (logits(loaded(base)).argmax(-1) == expected.argmax(-1)).float().mean()
    assert agree > plain and agree >= 0.5
    assert "lora" not in json.dumps(json.loads((out / "config.json").read_text()))
