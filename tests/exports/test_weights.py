"""Folders of safetensors, floating-point and quantized, load as what was exported."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoTokenizer

from components.exports.file_table import as_text, written_files
from pipeline.spec import SpecError
from tests.fakes.exports import exported, loaded, logits

Maker = Callable[..., Path]
SAVED = ("bnb_nf4", "bnb_fp4", "bnb_int8", "torchao_int8wo", "torchao_int8dyn", "torchao_fp8wo")


@pytest.fixture(scope="module")
def folder(tiny_llama: Maker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama whose head is not tied, as library quantizations want it."""
    made = tiny_llama(tie_word_embeddings=False, initializer_range=0.1)
    return Path(shutil.copytree(made, tmp_path_factory.mktemp("m") / "m"))


def of(folder: Path) -> list[str]:
    return ["model=local", f"model.path={folder}"]


@pytest.mark.parametrize(
    ("quantization", "dtype", "header"),
    [("none", "float32", "F32"), ("bf16", "bfloat16", "BF16"), ("fp16", "float16", "F16")],
)
def test_weights_are_written_in_the_type_that_is_asked_for(
    tiny_llama: Maker, tmp_path: Path, quantization: str, dtype: str, header: str
) -> None:
    tied = tiny_llama()
    out = tmp_path / "out"
    record = exported(out, "to=safetensors", f"quantization={quantization}", *of(tied))
    with safe_open(out / "model.safetensors", "pt") as file:
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {header}  # noqa: SIM118
    assert json.loads((out / "config.json").read_text())["dtype"] == dtype
    files = {file["file"]: file for file in record["files"]}
    assert list(files["model.safetensors"]["dtypes"]) == [header]
    assert all((out / name).stat().st_size == file["bytes"] for name, file in files.items())
    plain = {"none": None}.get(quantization, dtype)
    assert torch.equal(logits(loaded(out)), logits(loaded(tied, plain)))


def test_tokenizer_template_and_generation_config_are_the_checkpoints_own(
    folder: Path, tmp_path: Path
) -> None:
    source = Path(shutil.copytree(folder, tmp_path / "source"))
    odd = {"do_sample": False, "temperature": 0.6, "eos_token_id": [2, 0]}  # as makers have them
    (source / "generation_config.json").write_text(json.dumps(odd))
    template = tmp_path / "mine.jinja"
    template.write_text("{{ messages[0].content }}!")
    exported(tmp_path / "out", "to=safetensors", *of(source), f"model.chat_template={template}")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    asked = [{"role": "user", "content": "Hi"}]
    assert tokenizer.apply_chat_template(asked, tokenize=False) == "Hi!"


@pytest.mark.parametrize("name", SAVED)
def test_quantized_weights_come_back_as_they_are(folder: Path, tmp_path: Path, name: str) -> None:
    library = "torchao" if name.startswith("torchao") else "bitsandbytes"
    pytest.importorskip(library, reason="the extra `quantization` is not installed")
    out = tmp_path / "q"
    record = exported(out, "to=quantized", f"quantization={name}", *of(folder))
    assert record["reloaded_logits_differ_by"] == 0
    assert record["weights"]["quantized"]["model.layers.*.mlp.up_proj"] == 2
    small = sum(n for kind, n in record["weights"]["bytes"].items() if "8" in kind)
    stored = {k: n for f in record["files"] for k, n in f["dtypes"].items()}
    assert sum(n for kind, n in stored.items() if "8" in kind) >= small > 0
    assert logits(loaded(out)).isfinite().all()


def test_weights_that_do_not_come_back_are_not_exported(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("bitsandbytes", reason="the extra `quantization` is not installed")
    from components.exports.chosen_model import ChosenModel

    saved = ChosenModel.save

    def other_weights(chosen: ChosenModel, model: torch.nn.Module, where: Path) -> None:
        saved(chosen, model, where)
        model.model.norm.weight.data.mul_(2)

    monkeypatch.setattr(ChosenModel, "save", other_weights)
    with pytest.raises(SpecError, match="bnb_nf4 does not survive being saved.* off"):
        exported(tmp_path / "q", "to=quantized", "quantization=bnb_nf4", *of(folder))
    assert not (tmp_path / "q").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("to=safetensors quantization=bnb_nf4", "to=quantized saves quantized weights"),
        ("to=quantized quantization=bf16", "to=safetensors saves floating-point weights"),
        ("to=quantized quantization=dynamic_int8", "nearest that can is.*torchao_int8dyn"),
    ],
)
def test_the_wrong_kind_of_weights_is_refused_with_what_to_choose(
    folder: Path, tmp_path: Path, words: str, said: str
) -> None:
    with pytest.raises(SpecError, match=said):
        exported(tmp_path / "out", *words.split(), *of(folder))


def test_the_table_says_files_bytes_and_types(folder: Path) -> None:
    lines = as_text(written_files(folder)).splitlines()
    assert lines[0].split() == ["file", "bytes", "dtype"]
    (weights,) = (line for line in lines if line.startswith("model.safetensors"))
    assert weights.split()[1:] == [f"{(folder / 'model.safetensors').stat().st_size:,}", "F32"]
    assert lines[-1].startswith("total")
