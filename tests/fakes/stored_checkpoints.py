"""Checkpoints whose linear layers are stored as other tools quantize them, written by definition.

Each writer returns two folders: the stored one, and the same model with the numbers that the stored
tensors stand for, in float32. Every layer is rounded to its own kind's grid here, in plain torch.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Tensors = dict[str, Tensor]
# A layer's stored tensors by the ends of their names, and the weight that they stand for.
Stored = tuple[Tensors, Tensor]
_NIBBLES = torch.arange(0, 32, 4, dtype=torch.int64)  # where int32 keeps each of its eight
_AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # the column that each of eight nibbles holds
_FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])  # E2M1 without its sign


def written(
    plain: Path, folder: Path, config: dict[str, Any], store: Callable[[Tensor], Stored]
) -> tuple[Path, Path]:
    """Folders with the projections of `plain` as `store` makes them, and as what they stand for."""
    state = load_file(plain / "model.safetensors")
    stored, exact = dict(state), dict(state)
    for name in [name for name in state if "_proj.weight" in name]:
        parts, exact[name] = store(stored.pop(name))
        start = name.removesuffix("weight")
        stored |= {start + end: part.contiguous() for end, part in parts.items()}
    return _folder(plain, folder / "stored", stored, config), _folder(
        plain, folder / "exact", exact, None
    )


def written_mxfp4(plain: Path, folder: Path) -> tuple[Path, Path]:
    """The same of a GPT-OSS, whose experts [experts, inputs, outputs] are stored as MXFP4."""
    state = load_file(plain / "model.safetensors")
    stored, exact = dict(state), dict(state)
    for name in [name for name in state if name.endswith(("up_proj", "down_proj"))]:
        blocks, scales, means = block_float4(stored.pop(name).transpose(1, 2))
        stored |= {f"{name}_blocks": blocks.contiguous(), f"{name}_scales": scales.contiguous()}
        exact[name] = means.transpose(1, 2).contiguous()
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router"]
    kept += ["model.embed_tokens", "lm_head"]
    config = {"quant_method": "mxfp4", "modules_to_not_convert": kept}
    return _folder(plain, folder / "stored", stored, config), _folder(
        plain, folder / "exact", exact, None
    )


def _folder(plain: Path, to: Path, tensors: Tensors, config: dict[str, Any] | None) -> Path:
    shutil.copytree(plain, to)
    save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    described = json.loads((plain / "config.json").read_text())
    added = {} if config is None else {"quantization_config": config}
    (to / "config.json").write_text(json.dumps(described | added))
    return to


def compressed_tensors(weights: dict[str, Any], kind: str, **group: Any) -> dict[str, Any]:
    """A quantization_config as llm-compressor writes it."""
    return {
        "quant_method": "compressed-tensors",
        "format": kind,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, **group}},
    }


def packed_int4(weight: Tensor) -> Stored:
    """Compressed-tensors' `pack-quantized`: eight numbers from -8 to 7 per int32, along rows."""
    scale = weight.abs().amax(1, keepdim=True) / 7
    whole = (weight / scale).round()
    packed = _packed(whole.long() + 8)
    shape = torch.tensor(weight.shape)
    parts = {"weight_packed": packed, "weight_scale": scale, "weight_shape": shape}
    return parts, whole * scale


def int8(weight: Tensor) -> Stored:
    """Compressed-tensors' `int-quantized`: bytes and a scale per output channel."""
    scale = weight.abs().amax(1, keepdim=True) / 127
    whole = (weight / scale).round()
    return {"weight": whole.to(torch.int8), "weight_scale": scale}, whole * scale


def float8(weight: Tensor) -> Stored:
    """Compressed-tensors' `float-quantized`: E4M3 and a scale per output channel."""
    scale = weight.abs().amax(1, keepdim=True) / 448
    small = (weight / scale).to(torch.float8_e4m3fn)
    return {"weight": small, "weight_scale": scale}, small.float() * scale


def gptq(weight: Tensor, group: int = 32) -> Stored:
    """GPTQ's first format: [inputs / 8, outputs] int32, zeros one less than they are, groups."""
    whole, zeros, scales, exact = _affine(weight, group)
    parts = {
        "qweight": _packed(whole).T,  # _packed packs along rows of [outputs, inputs]
        "qzeros": _packed((zeros.T - 1) & 15),
        "scales": scales.T.half(),
        "g_idx": (torch.arange(weight.shape[1]) // group).int(),
    }
    return parts, exact


def awq(weight: Tensor, group: int = 32) -> Stored:
    """AWQ's GEMM format: [inputs, outputs / 8] int32, the columns of eight interleaved, groups."""
    whole, zeros, scales, exact = _affine(weight, group)
    parts = {
        "qweight": _packed(_interleaved(whole.T)),
        "qzeros": _packed(_interleaved(zeros.T)),
        "scales": scales.T.half(),
    }
    return parts, exact


def block_float8(weight: Tensor, block: int = 32) -> Stored:
    """Fine-grained FP8, as DeepSeek-V3 and Qwen3-FP8 have it: E4M3 and a scale per square block."""
    rows, columns = weight.shape[0] // block, weight.shape[1] // block
    tiles = weight.view(rows, block, columns, block)
    scale = tiles.abs().amax((1, 3)) / 448
    wide = scale.repeat_interleave(block, 0).repeat_interleave(block, 1)
    small = (weight / wide).to(torch.float8_e4m3fn)
    return {"weight": small, "weight_scale_inv": scale}, small.float() * wide


def block_float4(weight: Tensor, block: int = 32) -> tuple[Tensor, Tensor, Tensor]:
    """MXFP4 of [..., inputs]: pairs [..., blocks, 16], exponents [..., blocks], what they mean."""
    tiles = weight.unflatten(-1, (-1, block))
    exponent = (tiles.abs().amax(-1, keepdim=True) / 6).log2().ceil()
    nearest = ((tiles / exponent.exp2()).abs().unsqueeze(-1) - _FP4).abs().argmin(-1)
    negative = (tiles < 0) & (nearest > 0)
    exact = (_FP4[nearest] * torch.where(negative, -1, 1) * exponent.exp2()).flatten(-2)
    code = (nearest + 8 * negative).to(torch.uint8)
    blocks = code[..., 0::2] | code[..., 1::2] << 4
    return blocks, (exponent.squeeze(-1) + 127).to(torch.uint8), exact


def _affine(weight: Tensor, group: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """4-bit numbers [outputs, inputs], zeros and scales [outputs, groups], and what they mean."""
    tiles = weight.unflatten(1, (-1, group))
    least, most = tiles.amin(-1, keepdim=True).clamp(max=0), tiles.amax(-1, keepdim=True)
    scale = ((most.clamp(min=0) - least) / 15).half().float()
    zero = (-least / scale).round().clamp(1, 15)
    whole = (tiles / scale + zero).round().clamp(0, 15)
    exact = ((whole - zero) * scale).flatten(1)
    return whole.flatten(1).long(), zero.squeeze(-1).long(), scale.squeeze(-1), exact


def _packed(nibbles: Tensor) -> Tensor:
    """Each eight of a row [..., 8 n] in an int32 [..., n], the first in the lowest bits."""
    wide = (nibbles.unflatten(-1, (-1, 8)) << _NIBBLES).sum(-1)
    return torch.where(wide >= 1 << 31, wide - (1 << 32), wide).int()


def _interleaved(columns: Tensor) -> Tensor:
    return columns.unflatten(-1, (-1, 8))[..., _AWQ_ORDER].flatten(-2)
