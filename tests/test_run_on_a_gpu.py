"""Runs and exports through the real doors on a machine with a CUDA device."""

import gc
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from launch import api
from tests.fakes.exports import exported
from tests.fakes.tiny_models import random_adapter, tiny

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

DEVICE = "cuda"


@pytest.fixture(scope="module")
def llama(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama whose head is not tied, as library quantizations want it."""
    folder = tmp_path_factory.mktemp("llama")
    return tiny("llama", smollm2, folder, initializer_range=0.1, tie_word_embeddings=False)


@pytest.fixture(autouse=True)
def fresh_peak() -> None:
    """Each test sees its own peak of the device's memory."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


@pytest.mark.parametrize(
    ("decoder", "quantization"), [("generate", "fp32"), ("slots", "fp32"), ("slots", "fp16")]
)
def test_the_phases_of_a_run_are_timed_and_their_bytes_add_up_to_the_devices_peak(
    decoder: str, quantization: str, llama: Path, tmp_path: Path
) -> None:
    before = torch.cuda.max_memory_allocated()
    line = [
        *["task=crossword", "model=local", f"model.path={llama}", "backend=hf"],
        *[f"backend.device={DEVICE}", f"backend.decoder={decoder}", "backend.compile=false"],
        *[f"quantization={quantization}", "run.limit=3", "cue=none", "sampling.think_cap=16"],
        *["sampling.answer_cap=4", f"run.root={tmp_path}"],
    ]
    outcome = api.run(api.compose(*line))
    assert outcome.state == "complete"
    (attempt,) = json.loads((outcome.folder / "run.json").read_text())["attempts"]
    phases, told = attempt["phases"], attempt["backend"]
    assert told["device"] == torch.cuda.get_device_name() and told["generated_tokens"] > 0
    assert list(phases) == ["load", "prefill", "decode", "write"]
    assert all(phase["seconds"] > 0 for phase in phases.values())
    seconds = [phase["seconds"] for phase in phases.values()]
    # Rows are written while others decode; the model does one thing at a time.
    assert sum(seconds[:3]) < attempt["seconds"] > seconds[3]
    weights, peak = sum(told["weights"]["bytes"].values()), told["peak_memory_bytes"]
    added = {name: phase["peak_added_bytes"] for name, phase in phases.items()}
    assert peak == torch.cuda.max_memory_allocated()
    assert weights <= added["load"] - before <= peak - before
    assert sum(added[name] for name in ("load", "prefill", "decode")) == peak
    per_token = told["cache"]["bytes_of_sequence"]["2048"] // 2048
    cached = told.get("cache_tokens", 0) * per_token  # generate reserves none
    assert weights + cached <= peak - before < weights + cached + (1 << 30)
    assert (outcome.folder / "log.txt").read_text().count("without CUDA graphs") == (
        (decoder, quantization) == ("slots", "fp32")
    )


def of(folder: Path) -> list[str]:
    return ["model=local", f"model.path={folder}"]


def test_a_merge_beside_a_gpu_is_the_sum_that_the_processor_makes_and_takes_none_of_its_memory(
    llama: Path, tmp_path: Path
) -> None:
    pytest.importorskip("peft", reason="the extra `lora` is not installed")
    adapter = random_adapter(llama, tmp_path / "adapter")
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.max_memory_allocated()
    words = [*of(llama), f"model.adapter={adapter}", "quantization=fp32"]
    exported(tmp_path / "merged", "to=merged", *words)
    assert torch.cuda.max_memory_allocated() == before
    found = load_file(tmp_path / "merged/model.safetensors")
    base = load_file(llama / "model.safetensors")
    factors = load_file(adapter / "adapter_model.safetensors")
    assert found.keys() == base.keys()
    changed = 0
    for name, weight in base.items():
        layer = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{layer}.lora_A.weight" in factors:  # of rank 8 and alpha 8: the update is not scaled
            up, down = (factors[f"{layer}.lora_{part}.weight"] for part in "BA")
            weight, changed = weight + up @ down, changed + 1
        torch.testing.assert_close(found[name], weight, atol=1e-6, rtol=1e-6)
    assert changed == 14, "seven products in each of two layers"


def test_plain_weights_written_beside_a_gpu_are_the_checkpoints_and_take_none_of_its_memory(
    llama: Path, tmp_path: Path
) -> None:
    before = torch.cuda.max_memory_allocated()
    exported(tmp_path / "out", "to=safetensors", "quantization=bf16", *of(llama))
    assert torch.cuda.max_memory_allocated() == before
    found = load_file(tmp_path / "out/model.safetensors")
    base = load_file(llama / "model.safetensors")
    assert found.keys() == base.keys()
    assert all(torch.equal(found[name], each.bfloat16()) for name, each in base.items())


@pytest.mark.parametrize("name", ["torchao_int8wo", "bnb_int8", "bnb_nf4"])
def test_weights_quantized_on_the_gpu_are_those_that_the_processor_quantizes(
    name: str, llama: Path, tmp_path: Path
) -> None:
    library = "torchao" if name.startswith("torchao") else "bitsandbytes"
    pytest.importorskip(library, reason="the extra `quantization` is not installed")

    def tensors(device: str, out: Path) -> dict[str, Any]:
        words = ["to=quantized", f"to.device={device}", f"quantization={name}", *of(llama)]
        record = exported(out, *words)
        assert record["reloaded_logits_differ_by"] < 1e-3
        return load_file(out / "model.safetensors")

    ours, theirs = tensors(DEVICE, tmp_path / "gpu"), tensors("cpu", tmp_path / "processor")
    assert ours.keys() == theirs.keys()
    for key in [key for key in ours if "quant_state" not in key]:  # a text about the others
        tensor, other = ours[key], theirs[key]
        assert (tensor.dtype, tensor.shape) == (other.dtype, other.shape), key
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, other, atol=1e-4, rtol=1e-2)
        else:  # a number halfway between two steps may be rounded to either
            assert (tensor != other).float().mean() < 0.01, key
