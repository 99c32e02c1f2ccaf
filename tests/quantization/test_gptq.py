"""GPTQ and AWQ checkpoints on a processor, with the package that Transformers reads them with.

`make test-gptq` installs it beside the others: it pins a NumPy and is no part of an extra.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gptqmodel", reason="make test-gptq installs it")
pytest.importorskip("optimum", reason="make test-gptq installs it")

from pipeline.protocols import ForcedTokens
from tests.fakes.exports import exported, loaded, logits
from tests.fakes.hf_requests import answers, backend, request
from tests.fakes.stored_checkpoints import awq, gptq, written

# Its plain kernels compute in the model's type; those that it prefers round to bfloat16.
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
KINDS: dict[str, tuple[dict[str, Any], Any, str]] = {
    "gptq": (GPTQ | {"checkpoint_format": "gptq"}, gptq, "torch"),
    "awq": (AWQ, awq, "torch_awq"),
}


@pytest.fixture(scope="module")
def plain(tiny_llama: Callable[..., Path]) -> Path:
    return tiny_llama(tie_word_embeddings=False, initializer_range=0.1)


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def pair(kind: str, plain: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder that is stored so, and one with the numbers that it stands for."""
    config, store, _ = KINDS[kind]
    return written(plain, tmp_path_factory.mktemp("stored"), config, store)


def test_plain_kernels_compute_with_the_numbers_that_are_stored(
    kind: str, plain: Path, tmp_path: Path
) -> None:
    config, store, kernel = KINDS[kind]
    stored, exact = written(plain, tmp_path, config | {"backend": kernel}, store)
    found, expected = logits(loaded(stored, "float32")), logits(loaded(exact))
    assert float((found - expected).abs().max()) < 0.01  # weights are made in float16
    assert float((found - logits(loaded(plain))).abs().max()) > 1


def test_the_kernels_that_are_preferred_are_off_by_rounding_only(
    pair: tuple[Path, Path], plain: Path
) -> None:
    stored, exact = pair
    expected = logits(loaded(exact))
    assert float((logits(loaded(stored, "float32")) - expected).abs().max()) < 0.2
    assert float((logits(loaded(plain)) - expected).abs().max()) > 1


def test_layers_and_bytes_are_told_and_rows_do_not_depend_on_their_batch(
    kind: str, pair: tuple[Path, Path]
) -> None:
    stored, _ = pair

    async def run(decoder: str) -> dict[str, Any]:
        async with backend(stored, decoder=decoder) as made:
            asked = [request(number, cap=8) for number in range(3)]
            rows = await asyncio.gather(*map(made.generate, asked))
            one = [await made.generate(each) for each in asked]
            assert [row.token_ids for row in rows] == [row.token_ids for row in one]
            ids = made.encode(request(1).prompt)
            scores = (await made.score([ForcedTokens(ids, rows[1].token_ids)]))[0]
            assert rows[1].entropies == pytest.approx(scores.entropies, abs=1e-4)
            return made.describe()

    for decoder in ("generate", "slots"):
        weights = asyncio.run(run(decoder))["weights"]
        assert weights["stored"] == kind
        assert weights["quantized"]["model.layers.*.mlp.down_proj"] == 2
        assert sum(weights["quantized"].values()) == 14
        assert weights["kept"] == {"lm_head": 1, "model.embed_tokens": 1}
        packed = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128) // 2  # two numbers a byte
        assert 0 <= weights["bytes"]["int32"] - packed < 6000  # with zeros and groups
        assert weights["bytes"]["float16"] == 4 * packed // 32  # a scale for 32 numbers


def test_an_export_of_floats_is_refused(pair: tuple[Path, Path], kind: str, tmp_path: Path) -> None:
    from pipeline.spec import SpecError

    words = ("model=local", f"model.path={pair[0]}", "to=safetensors")
    with pytest.raises(SpecError, match=rf"stored quantized \({kind}\) and stay so"):
        exported(tmp_path / "out", *words)


def test_a_row_drawn_alone_is_the_row_drawn_by_transformers(pair: tuple[Path, Path]) -> None:
    asked = [request(number, cap=6, temperature=0.0) for number in range(2)]
    drawn = [
        [row.token_ids for row in answers(backend(pair[0], decoder=decoder), asked)]
        for decoder in ("generate", "slots")
    ]
    assert drawn[0] == drawn[1]
