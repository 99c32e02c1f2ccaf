"""Memory alone finds its way back onto its base; quantized banks come back as they are."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from components.models.checkpoint import resolve
from launch import api
from pipeline.spec import ModelSpec, SpecError
from tests.fakes.exports import exported, loaded, logits
from tests.fakes.memory_models import CHAPTERS, model, written

Maker = Callable[..., tuple[Path, Any]]


@pytest.fixture
def checkpoint(smollm2: Path, tmp_path: Path) -> Maker:
    """`checkpoint(adapter=True, **memory)`: a folder of the original, and the model in it."""

    def make(adapter: bool = True, state: dict[str, Any] | None = None, **memory: Any) -> Any:
        made = model(adapter=adapter, vocabulary=49152, **memory)
        folder = written(tmp_path / "original", made, **(state or {}))
        config = (folder / "config.yaml").read_text().replace("vocab_size: 61", "vocab_size: 49152")
        (folder / "config.yaml").write_text(config)
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copyfile(smollm2 / name, folder / name)
        if adapter:
            made.backbone.save_pretrained(tmp_path / "base")
            for name in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copyfile(smollm2 / name, tmp_path / "base" / name)
        return folder, made

    return make


def of(folder: Path) -> list[str]:
    return ["model=local", f"model.path={folder}", f"run.cache_dir={folder.parent}/cache"]


def test_memory_alone_goes_back_onto_its_base(
    checkpoint: Maker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, made = checkpoint(**CHAPTERS)
    out = tmp_path / "memory"
    record = exported(out, "to=memory", *of(folder))
    assert (record["base"], record["changed"]) == (str(tmp_path / "base"), [])
    parts = load_file(out / "model.safetensors")
    assert set(parts) == {n for n in made.state_dict() if not n.startswith("backbone.")}
    assert any(".memory_layernorm." in name for name in parts)
    assert sum(t.nbytes for t in parts.values()) < 0.05 * (folder / "model.pt").stat().st_size
    assert torch.equal(logits(loaded(out)), logits(loaded(folder)))
    torch.testing.assert_close(logits(loaded(out)), logits(made), rtol=1e-5, atol=1e-5)
    assert "memory_parts" not in caplog.text


def test_what_training_changed_in_the_backbone_comes_along(
    checkpoint: Maker, tmp_path: Path
) -> None:
    name = "base_model.model.layers.1.self_attn.q_proj."
    lora = {f"{name}lora_A": torch.randn(2, 32), f"{name}lora_B": torch.randn(32, 2)}
    folder, made = checkpoint(state=lora, use_lora=True, lora_rank=2)
    record = exported(tmp_path / "memory", "to=memory", *of(folder))
    assert record["changed"] == ["model.layers.1.self_attn.q_proj.weight"]
    found = logits(loaded(tmp_path / "memory"))
    assert torch.equal(found, logits(loaded(folder)))
    assert float((found - logits(made)).abs().max()) > 0.1


def test_memory_of_a_model_trained_whole_has_its_norms_and_second_mlps(
    checkpoint: Maker, tmp_path: Path
) -> None:
    folder, made = checkpoint(adapter=False, **CHAPTERS, memory_block_variant="B")
    with pytest.raises(SpecError, match=r"to\.base must name the backbone"):
        exported(tmp_path / "memory", "to=memory", *of(folder))
    from transformers import LlamaForCausalLM

    plain = LlamaForCausalLM(made.config.backbone_config)
    backbone = {k: v for k, v in made.backbone.state_dict().items()}
    plain.load_state_dict(backbone)
    plain.save_pretrained(tmp_path / "whole")
    shutil.copyfile(folder / "tokenizer.json", tmp_path / "whole/tokenizer.json")
    out = tmp_path / "memory"
    record = exported(out, "to=memory", f"to.base={tmp_path}/whole", *of(folder))
    assert record["changed"] == []
    assert any("post_memory_mlp" in name for name in load_file(out / "model.safetensors"))
    assert torch.equal(logits(loaded(out)), logits(loaded(folder)))


def test_another_base_or_none_is_refused(checkpoint: Maker, tmp_path: Path) -> None:
    folder, made = checkpoint()
    exported(tmp_path / "memory", "to=memory", *of(folder))
    with torch.no_grad():
        made.backbone.model.norm.weight.add_(1)
    made.backbone.save_pretrained(tmp_path / "base")
    with pytest.raises(SpecError, match="must be the model that this memory was trained on"):
        loaded(tmp_path / "memory")
    shutil.rmtree(tmp_path / "base")
    with pytest.raises(SpecError, match="which is not within reach: put the base there"):
        loaded(tmp_path / "memory")


def test_a_model_of_other_shapes_is_no_base(
    checkpoint: Maker, tmp_path: Path, tiny_llama: Callable[..., Path]
) -> None:
    folder, _ = checkpoint()
    with pytest.raises(SpecError, match="is not the backbone of this model"):
        exported(tmp_path / "memory", "to=memory", f"to.base={tiny_llama()}", *of(folder))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("factors", [False, True], ids=["whole", "factors"])
def test_a_quantized_bank_comes_back_and_does_not_grow(
    checkpoint: Maker, tmp_path: Path, bits: int, factors: bool
) -> None:
    low = {"use_low_rank_memory": True, "memory_rank": 8} if factors else {}
    folder, made = checkpoint(**CHAPTERS, **low)
    out = tmp_path / "q"
    record = exported(out, "to=memory_quantized", f"to.bits={bits}", *of(folder))
    assert record["reloaded_logits_differ_by"] == 0
    names = ("A", "B") if factors else ("memory",)
    assert set(record["memory"]) == {f"0.base_bank.{name}" for name in names}
    for matrix in record["memory"].values():
        assert matrix["bytes_after"] < matrix["bytes_before"] / (2 if bits == 8 else 3)
        assert 0 < matrix["relative_error"] < (0.01 if bits == 8 else 0.15)
    sizes = [sum(record["parts"][when]["memory_bank"].values()) for when in ("before", "after")]
    assert sizes[1] == sum(matrix["bytes_after"] for matrix in record["memory"].values()) < sizes[0]
    assert record["parts"]["before"]["base"] == record["parts"]["after"]["base"]
    back = loaded(out)
    assert back.settings.memory_quant_bits == bits and back.settings.use_low_rank_memory is factors
    exact = logits(made)
    error = float((logits(back) - exact).norm() / exact.norm())
    assert error < (0.05 if bits == 8 else 0.5)
    stored = load_file(out / "model.safetensors")
    kept = [n for n in stored if "memory_banks" not in n]
    assert all(torch.equal(stored[n], made.state_dict()[n]) for n in kept)


@pytest.mark.parametrize("decoder", ["auto", "generate"])
def test_a_run_decodes_with_a_quantized_bank(
    checkpoint: Maker, tmp_path: Path, decoder: str
) -> None:
    folder, _ = checkpoint(**CHAPTERS, routing_strategy_inference="token")
    exported(tmp_path / "q", "to=memory_quantized", "to.bits=4", *of(folder))
    words = ["task=qa", "backend=hf", "backend.device=cpu", f"backend.decoder={decoder}"]
    words += [*of(tmp_path / "q"), "run.limit=2", "sampling.max_new_tokens=4", "sampling=greedy"]
    outcome = api.run(api.compose(*words, f"run.root={tmp_path}/runs"))
    assert outcome.state == "complete" and len(list(outcome.rows())) == 2


def test_rows_of_odd_length_are_refused_at_4_bit(checkpoint: Maker, tmp_path: Path) -> None:
    folder, _ = checkpoint(memory_dim=21)
    with pytest.raises(SpecError, match="rows of even length, got 21: take 8 bit"):
        exported(tmp_path / "q", "to=memory_quantized", "to.bits=4", *of(folder))
    exported(tmp_path / "q", "to=memory_quantized", "to.bits=8", *of(folder))


def test_quantized_memory_can_be_taken_out_too(checkpoint: Maker, tmp_path: Path) -> None:
    folder, _ = checkpoint()
    exported(tmp_path / "q", "to=memory_quantized", "to.bits=4", *of(folder))
    exported(tmp_path / "parts", "to=memory", *of(tmp_path / "q"))
    assert torch.equal(logits(loaded(tmp_path / "parts")), logits(loaded(tmp_path / "q")))
    with pytest.raises(SpecError, match="is quantized already"):
        exported(tmp_path / "again", "to=memory_quantized", *of(tmp_path / "q"))


def test_lora_of_a_memory_model_is_merged_once(checkpoint: Maker, tmp_path: Path) -> None:
    name = "base_model.model.layers.1.self_attn.q_proj."
    lora = {f"{name}lora_A": torch.randn(2, 32), f"{name}lora_B": torch.randn(32, 2)}
    folder, _ = checkpoint(state=lora, use_lora=True, lora_rank=2)
    out = tmp_path / "merged"
    exported(out, "to=merged", *of(folder))
    assert not json.loads((out / "config.json").read_text())["memory"].get("use_lora")
    assert torch.equal(logits(loaded(out)), logits(loaded(folder)))
    with pytest.raises(SpecError, match="has none to merge"):
        exported(tmp_path / "again", "to=merged", *of(out))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("to=memory", "to=memory must have a memory-augmented model"),
        ("to=memory_quantized", "to=memory_quantized must have a memory-augmented model"),
        ("to=memory_quantized to.bits=5", "to.bits must be 8 or 4, got 5"),
    ],
)
def test_a_model_without_memory_is_refused(
    smollm2: Path, tmp_path: Path, words: str, told: str
) -> None:
    with pytest.raises(SpecError, match=told):
        exported(tmp_path / "m", *words.split(), "model=local", f"model.path={smollm2}")


def test_the_identity_of_parts_does_not_depend_on_where_they_lie(
    checkpoint: Maker, tmp_path: Path
) -> None:
    folder, _ = checkpoint()
    exported(tmp_path / "memory", "to=memory", *of(folder))
    moved = shutil.copytree(tmp_path / "memory", tmp_path / "elsewhere")
    cache = tmp_path / "cache"
    (one, other) = (resolve(ModelSpec(path=str(p)), cache) for p in (tmp_path / "memory", moved))
    assert one.identity == other.identity and one.architecture is not None
