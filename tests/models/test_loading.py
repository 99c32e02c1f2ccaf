"""The model that is loaded has the checkpoint's weights, or the run does not start."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from components.models.checkpoint import prepare, resolve
from components.models.loading import attention_for, load_model
from components.models.tokenizer_loading import load_tokenizer
from components.quantization.precision import Precision
from pipeline.spec import ModelSpec, SpecError
from tests.fakes.tiny_models import tiny

Maker = Callable[..., Path]
FLOAT32 = Precision("float32")
CPU = torch.device("cpu")


def load(path: object, cache: Path, precision: Any = FLOAT32, **fields: Any) -> PreTrainedModel:
    spec = ModelSpec(path=str(path), **({"name": "m"} | fields))
    return load_model(prepare(resolve(spec, cache), cache), spec, precision, CPU)


def refusal(path: object, cache: Path, **fields: Any) -> str:
    with pytest.raises(SpecError) as caught:
        load(path, cache, **fields)
    return str(caught.value)


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=torch.arange(5, 25)[None]).logits  # type: ignore[no-any-return]


@pytest.fixture
def folder(tiny_llama: Maker, tmp_path: Path) -> Path:
    """A copy of the tiny model, whose head is not tied to its embedding."""
    return shutil.copytree(tiny_llama(tie_word_embeddings=False), tmp_path / "model")


def rename(folder: Path, change: Callable[[str], str | None]) -> None:
    """Give the tensors of a folder other names; None drops one."""
    weights = load_file(folder / "model.safetensors")
    renamed = {new: tensor for old, tensor in weights.items() if (new := change(old)) is not None}
    save_file(renamed, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    "wrap",
    [
        lambda name: f"_orig_mod.{name}",
        lambda name: f"module.{name}",
        lambda name: f"module._orig_mod.{name}",
        lambda name: name.replace("layers.1.", "layers.1._orig_mod."),
        lambda name: f"_fsdp_wrapped_module.{name}".replace(
            "mlp", "_checkpoint_wrapped_module.mlp"
        ),
    ],
    ids=["compiled", "data parallel", "both", "a compiled layer", "fully sharded"],
)
def test_names_that_wrappers_gave_are_stripped(
    folder: Path, tmp_path: Path, wrap: Callable[[str], str]
) -> None:
    expected = logits(load(folder, tmp_path / "cache"))
    rename(folder, wrap)
    assert torch.equal(logits(load(folder, tmp_path / "cache")), expected)


def test_a_missing_tensor_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    rename(folder, lambda name: None if name == "lm_head.weight" else name)
    said = refusal(folder, tmp_path / "cache")
    assert "it lacks lm_head.weight" in said and said.startswith("model.path must")


def test_an_unexpected_tensor_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    rename(folder, lambda name: name.replace("layers.1.mlp.up_proj", "layers.1.mlp.top_proj"))
    said = refusal(folder, tmp_path / "cache")
    assert "it lacks model.layers.1.mlp.up_proj.weight" in said
    assert "the model does not know model.layers.1.mlp.top_proj.weight" in said


def test_a_tensor_of_another_shape_is_refused_with_both_shapes(
    folder: Path, tmp_path: Path
) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 49_160}))
    said = refusal(folder, tmp_path / "cache")
    assert "lm_head.weight (file [49152, 64], model [49160, 64])" in said


def test_tied_weights_need_no_tensor_of_their_own(tiny_llama: Maker, tmp_path: Path) -> None:
    folder = tiny_llama()
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    model: Any = load(folder, tmp_path)
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_a_file_that_is_cut_off_is_named_with_its_size(folder: Path, tmp_path: Path) -> None:
    file = folder / "model.safetensors"
    size = file.stat().st_size
    os.truncate(file, size // 2)
    assert refusal(folder, tmp_path / "cache").startswith(
        f"{file} is cut off: it has {size // 2:,} of {size:,} bytes"
    )
    os.truncate(file, 100)
    assert f"{file} is cut off" in refusal(folder, tmp_path / "cache")


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_git_lfs_pointer_is_named_with_what_to_run(
    folder: Path, tmp_path: Path, name: str
) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"
    (folder / name).write_text(pointer)
    said = refusal(folder, tmp_path / "cache")
    assert str(folder / name) in said and ("git lfs pull" in said or name == "config.json")


def tokenizer_refusal(folder: Path, cache: Path) -> str:
    spec = ModelSpec(name="m", path=str(folder))
    with pytest.raises(SpecError) as caught:
        load_tokenizer(resolve(spec, cache), spec)
    return str(caught.value)


def test_a_tokenizer_that_cannot_be_read_is_named_with_the_reason(
    folder: Path, tmp_path: Path
) -> None:
    file = folder / "tokenizer.json"
    whole = json.loads(file.read_text())
    file.write_text(json.dumps(whole | {"pre_tokenizer": {"type": "FromTheFuture"}}))
    assert f"the tokenizer in {file} cannot" in tokenizer_refusal(folder, tmp_path / "cache")
    for end in (2000, 1 << 21):
        file.write_text(json.dumps(whole, indent=1)[:end])
        said = tokenizer_refusal(folder, tmp_path / "cache")
        assert re.match(rf"{file}:\d+ is not JSON .*cut off", said)
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n")
    assert "tokenizer.json is a Git LFS pointer" in tokenizer_refusal(folder, tmp_path / "cache")


def test_a_missing_shard_is_named(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    shards = shutil.copytree(folder, tmp_path / "shards")
    (shards / "model.safetensors").unlink()
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(shards, max_shard_size="9MB")
    expected = logits(load(folder, tmp_path / "cache"))
    assert torch.equal(logits(load(shards, tmp_path / "cache")), expected)
    gone = sorted(shards.glob("model-*.safetensors"))[-1]
    gone.unlink()
    assert f"names {gone.name}, not in its folder" in refusal(shards, tmp_path / "cache")


class Hostile:
    def __reduce__(self) -> Any:
        return os.system, ("touch was_here",)


def test_a_hostile_pickle_is_not_run_and_nobody_is_told_to_run_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (folder / "model.safetensors").unlink()
    torch.save({"model.norm.weight": Hostile()}, folder / "pytorch_model.bin")
    said = refusal(folder, tmp_path / "cache")
    assert not (tmp_path / "was_here").exists()
    assert "pytorch_model.bin is a pickle that is not loaded, since it calls" in said
    assert "weights_only" not in said and "\n" not in said


def test_a_pickle_of_tensors_is_loaded_and_a_broken_one_named(folder: Path, tmp_path: Path) -> None:
    expected = logits(load(folder, tmp_path / "cache"))
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    file = folder / "pytorch_model.bin"
    torch.save({f"module.{name}": tensor for name, tensor in weights.items()}, file)
    assert torch.equal(logits(load(folder, tmp_path / "cache")), expected)
    os.truncate(file, file.stat().st_size // 2)
    assert f"{file} is cut off" in refusal(folder, tmp_path / "cache")


@pytest.fixture
def adapter(folder: Path, tmp_path: Path) -> tuple[Path, torch.Tensor]:
    """A LoRA adapter of `folder`, and the logits of both together."""
    peft = pytest.importorskip("peft", reason="the extra `lora` is not installed")
    from transformers import AutoModelForCausalLM

    config = peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    config.init_lora_weights = False
    torch.manual_seed(0)
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(folder), config)
    model.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter", logits(model.train(False))


def test_an_adapter_is_merged_into_the_base_that_it_names(
    folder: Path, adapter: tuple[Path, torch.Tensor], tmp_path: Path
) -> None:
    where, expected = adapter
    base = logits(load(folder, tmp_path / "cache"))
    assert (base - expected).abs().max() > 0.1
    model = load(where, tmp_path / "cache")
    assert (logits(model) - expected).abs().max() < 1e-3
    assert not [name for name in model.state_dict() if "lora" in name]
    named = load(folder, tmp_path / "cache", adapter=str(where))
    assert torch.equal(logits(named), logits(model))


def test_an_adapter_changes_the_identity_and_takes_its_bases_tokenizer(
    folder: Path, adapter: tuple[Path, torch.Tensor], tmp_path: Path
) -> None:
    where, _ = adapter
    alone = resolve(ModelSpec(path=str(folder)), tmp_path / "cache")
    both = resolve(ModelSpec(path=str(where)), tmp_path / "cache")
    assert both.identity["weights"] == alone.identity["weights"]
    assert both.identity["adapter"] and "adapter" not in alone.identity
    assert both.tokenizer == alone.tokenizer
    named = resolve(ModelSpec(path=str(folder), adapter=str(where)), tmp_path / "cache")
    assert named.identity == both.identity


def test_a_series_of_adapters_goes_onto_model_path(
    folder: Path, adapter: tuple[Path, torch.Tensor], tmp_path: Path
) -> None:
    where, expected = adapter
    config = json.loads((where / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "/nowhere/on/this/machine"
    shutil.copytree(where, tmp_path / "series" / "checkpoint-20")
    step = tmp_path / "series" / "checkpoint-20"
    (step / "adapter_config.json").write_text(json.dumps(config))
    model = load(folder, tmp_path / "cache", checkpoints=str(tmp_path / "series"), step=20)
    assert (logits(model) - expected).abs().max() < 1e-3
    said = refusal(step, tmp_path / "cache")
    assert "is a LoRA adapter of '/nowhere/on/this/machine'" in said
    assert f"model.adapter={step}" in said


def test_an_adapter_of_another_model_is_refused(
    adapter: tuple[Path, torch.Tensor], tiny_llama: Maker, tmp_path: Path
) -> None:
    where, _ = adapter
    other = tiny_llama(num_hidden_layers=1)
    assert "do not, such as" in refusal(other, tmp_path / "cache", adapter=str(where))
    wide = tiny_llama(intermediate_size=96)
    assert "does not fit the model" in refusal(wide, tmp_path / "cache", adapter=str(where))


@pytest.mark.parametrize("kind", ["gpt_neo", "mamba", "rwkv"])
def test_attention_falls_back_to_what_the_architecture_has(
    kind: str, smollm2: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    fields = {
        "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
        "mamba": {"state_size": 4},
        "rwkv": {"attention_hidden_size": 64},
    }
    folder = tiny(kind, smollm2, tmp_path / kind, vocab_size=49152, **fields[kind])
    model = load(folder, tmp_path / "cache")
    assert logits(model).isfinite().all()
    assert "model.attn_implementation=sdpa is eager for" in caplog.text
    assert attention_for(model.config, "eager") == "eager"
