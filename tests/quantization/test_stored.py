"""Checkpoints that other tools quantized load as they are."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.fakes.exports import loaded, logits

# As llm-compressor writes a checkpoint with 4-bit weights and one scale per output channel.
WORDS = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "channel"},
        }
    },
}


def test_a_checkpoint_of_compressed_tensors_loads_as_it_is(
    tiny_llama: Callable[..., Path], tmp_path: Path
) -> None:
    pytest.importorskip("compressed_tensors", reason="the extra `quantization` is not installed")
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    plain = tiny_llama(tie_word_embeddings=False, initializer_range=0.1)
    stored, rounded = (Path(shutil.copytree(plain, tmp_path / name)) for name in ("q", "r"))
    state, exact = load_file(plain / "model.safetensors"), {}
    for name, weight in list(state.items()):
        if "_proj.weight" in name:
            scale = weight.abs().amax(1, keepdim=True) / 7
            whole = (weight / scale).round().to(torch.int8)
            del state[name]
            state[f"{name}_packed"] = pack_to_int32(whole, 4)
            state[f"{name}_scale"] = scale
            state[f"{name}_shape"] = torch.tensor(weight.shape)
            exact[name] = whole * scale
    save_file(state, stored / "model.safetensors", metadata={"format": "pt"})
    exact = load_file(plain / "model.safetensors") | exact
    save_file(exact, rounded / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((stored / "config.json").read_text())
    (stored / "config.json").write_text(json.dumps(config | {"quantization_config": WORDS}))
    found, expected = logits(loaded(stored)), logits(loaded(rounded))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert float((found - logits(loaded(plain))).abs().max()) > 1e-4
