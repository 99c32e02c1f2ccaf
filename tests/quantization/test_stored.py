"""Checkpoints that other tools quantized load as they are, or are refused before loading.

Each is written by its format's definition (`tests.fakes.stored_checkpoints`), and its logits are
those of the same model with the numbers that the stored tensors stand for.
"""

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from components.models import loading, stored_quantization
from components.quantization.report import weights_report
from pipeline.protocols import ForcedTokens, Generation
from pipeline.spec import SpecError
from tests.fakes.exports import exported, loaded, logits
from tests.fakes.hf_requests import answers, ask, backend, request
from tests.fakes.stored_checkpoints import (
    block_float8,
    compressed_tensors,
    float8,
    int8,
    packed_int4,
    written,
    written_mxfp4,
)
from tests.fakes.tiny_models import tiny

CHANNEL = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
TOKEN = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
FLOAT = {"type": "float"}
BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32]}
KINDS: dict[str, tuple[dict[str, Any], Any]] = {
    "pack-quantized": (
        compressed_tensors(CHANNEL | {"num_bits": 4}, "pack-quantized"),
        packed_int4,
    ),
    "int-quantized": (compressed_tensors(CHANNEL, "int-quantized", input_activations=TOKEN), int8),
    "float-quantized": (
        compressed_tensors(CHANNEL | FLOAT, "float-quantized", input_activations=TOKEN | FLOAT),
        float8,
    ),
    "naive-quantized": (compressed_tensors(CHANNEL | FLOAT, "naive-quantized"), float8),
    "fp8": (BLOCKS, block_float8),
}
METHODS = {kind: "fp8" if kind == "fp8" else "compressed-tensors" for kind in KINDS}
Maker = Callable[..., Path]


@pytest.fixture(scope="module")
def plain(tiny_llama: Maker) -> Path:
    return tiny_llama(tie_word_embeddings=False, initializer_range=0.1)


@pytest.fixture(scope="module", params=KINDS)
def pair(
    request: pytest.FixtureRequest, plain: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, Path]:
    """A kind, a folder that is stored so, and one with the numbers that it stands for."""
    pytest.importorskip("compressed_tensors", reason="the extra `quantization` is not installed")
    kind = request.param
    return kind, *written(plain, tmp_path_factory.mktemp("stored"), *KINDS[kind])


def as_int8(scaled: Tensor) -> Tensor:
    return scaled.round().clamp(-128, 127)


def as_float8(scaled: Tensor) -> Tensor:
    return scaled.to(torch.float8_e4m3fn).float()


# What the largest of a token's numbers becomes, and how the others are rounded.
ROUNDINGS = {"int-quantized": (127.5, as_int8), "float-quantized": (448.0, as_float8)}


def with_rounded_inputs(model: Any, kind: str) -> Any:
    """The model with what projections read rounded token by token, as the scheme says."""
    if kind not in ROUNDINGS:
        return model
    most, rounding = ROUNDINGS[kind]

    def rounded(layer: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
        scale = given[0].abs().amax(-1, keepdim=True) / most
        return (rounding(given[0] / scale) * scale,)

    for name, module in model.named_modules():
        if name.endswith("_proj"):
            module.register_forward_pre_hook(rounded)
    return model


def test_logits_are_those_of_the_numbers_that_are_stored(
    pair: tuple[str, Path, Path], plain: Path
) -> None:
    kind, stored, exact = pair
    found, expected = (
        logits(loaded(stored)),
        logits(with_rounded_inputs(loaded(exact), kind)),
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert float((found - logits(loaded(plain))).abs().max()) > 0.1


def test_what_is_held_as_floats_is_told_as_floats_and_how_it_was_stored_too(
    pair: tuple[str, Path, Path], plain: Path
) -> None:
    """compressed-tensors and FP8 become floating-point weights here; no run may claim fewer."""
    kind, stored, _ = pair

    async def described() -> dict[str, Any]:
        async with backend(stored) as made:
            before = dict(made.describe()["weights"])
            await made.generate(request(0, cap=2))
            assert weights_report(made.model)["bytes"] == before["bytes"]
            return before

    weights = asyncio.run(described())
    assert weights["stored"] == METHODS[kind]
    assert weights["quantized"] == {} and sum(weights["kept"].values()) == 16
    whole = sum(made.nbytes for made in loaded(plain).parameters())
    assert 0 <= weights["bytes"]["float32"] - whole < 20_000  # with scales, and rotations


def test_every_decoder_gives_a_row_alone_what_it_gives_it_in_a_batch(
    pair: tuple[str, Path, Path],
) -> None:
    _, stored, _ = pair
    requests = [request(number, cap=8) for number in range(4)]
    rows: list[list[list[int]]] = []
    for decoder in ("generate", "slots"):
        together = answers(backend(stored, decoder=decoder), requests)
        one = [
            row for each in requests for row in answers(backend(stored, decoder=decoder), [each])
        ]
        rows += [[list(row.token_ids) for row in made] for made in (together, one)]
    assert all(made == rows[0] for made in rows)


def test_scores_are_the_entropies_of_the_rows_that_were_drawn(
    pair: tuple[str, Path, Path],
) -> None:
    _, stored, _ = pair

    async def both() -> tuple[Generation, Any]:
        async with backend(stored, decoder="slots") as made:
            row = await made.generate(request(1, cap=8))
            ids = made.encode(request(1).prompt)
            return row, (await made.score([ForcedTokens(ids, row.token_ids)]))[0]

    row, scores = asyncio.run(both())
    assert row.entropies == pytest.approx(scores.entropies, abs=1e-4)


def test_the_identity_changes_with_how_the_weights_are_stored(
    pair: tuple[str, Path, Path], tmp_path: Path
) -> None:
    _, stored, exact = pair
    other = Path(shutil.copytree(stored, tmp_path / "other"))
    config = json.loads((other / "config.json").read_text())
    config["quantization_config"]["ignore"] = ["lm_head", "model.embed_tokens"]
    (other / "config.json").write_text(json.dumps(config))
    identities = [backend(each).identity()["weights"] for each in (stored, exact, other)]
    assert len(set(identities)) == 3


def test_floats_are_exported_where_they_are_held_and_nothing_else_is(
    pair: tuple[str, Path, Path], tmp_path: Path
) -> None:
    kind, stored, exact = pair
    words = ("model=local", f"model.path={stored}", "to=safetensors")
    if kind != "fp8":
        with pytest.raises(SpecError, match=r"stored quantized \(compressed-tensors\) and stay so"):
            exported(tmp_path / "out", *words)
        assert not (tmp_path / "out").exists()
    else:
        exported(tmp_path / "out", *words)
        assert "quantization_config" not in (tmp_path / "out/config.json").read_text()
        torch.testing.assert_close(logits(loaded(tmp_path / "out")), logits(loaded(exact)))
    with pytest.raises(SpecError, match="stored quantized"):
        exported(tmp_path / "gguf", *words[:2], "to=gguf")


def test_mxfp4_experts_load_as_the_numbers_that_they_stand_for(
    smollm2: Path, tmp_path: Path
) -> None:
    fields = {"num_local_experts": 4, "intermediate_size": 64, "head_dim": 16, "sliding_window": 8}
    plain = tiny("gpt_oss", smollm2, tmp_path / "plain", initializer_range=0.1, **fields)
    stored, exact = written_mxfp4(plain, tmp_path)
    found, expected = logits(loaded(stored, "float32")), logits(loaded(exact))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert float((found - logits(loaded(plain))).abs().max()) > 0.1
    requests = [request(number, cap=6) for number in range(3)]
    together = answers(backend(stored, decoder="auto"), requests)
    one = [row for each in requests for row in answers(backend(stored, decoder="auto"), [each])]
    assert [row.token_ids for row in together] == [row.token_ids for row in one]
    exported(tmp_path / "out", "model=local", f"model.path={stored}", "to=safetensors")
    torch.testing.assert_close(logits(loaded(tmp_path / "out", "float32")), expected)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"quant_method": "gptq", "bits": 4},
            r"\(gptq\).* with gptqmodel and optimum: pip install",
        ),
        ({"quant_method": "awq", "bits": 4}, r"\(awq\).* with gptqmodel: pip install"),
        (KINDS["fp8"][0] | {"quant_method": "exl2"}, "as exl2, which is none of"),
        ({"load_in_4bit": True}, r"\(bitsandbytes\).* with bitsandbytes: .*\[quantization\]"),
        (KINDS["int-quantized"][0], r"with compressed_tensors: .*\[quantization\]"),
    ],
)
def test_what_needs_a_missing_package_is_refused_before_loading_with_its_name(
    plain: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, Any],
    said: str,
) -> None:
    folder = Path(shutil.copytree(plain, tmp_path / "m"))
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(described | {"quantization_config": config}))
    monkeypatch.setattr(loading, "_from_pretrained", lambda *_: pytest.fail("weights are read"))
    monkeypatch.setattr(stored_quantization.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SpecError, match=said) as caught:
        asyncio.run(ask(backend(folder), [request(0)]))
    assert "take the weights that they were made from" in str(caught.value)
