"""`launch/quantize_check.py`: a row for every option, measured once, or the reason why not."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from components.backends.hf.backend import HfBackend
from launch import quantize_check as door
from launch.config.command_line import ended
from launch.quantizing import measure

SMALL = ("check.tokens=96", "check.length=40", "check.new_tokens=4", "check.batch=2")


@pytest.fixture
def words(tmp_path: Path, tiny_llama: Callable[..., Path]) -> list[str]:
    folder = tiny_llama(tie_word_embeddings=False, initializer_range=0.1)
    line = [f"model.path={folder}", "model=local", "backend.device=cpu", "backend.threads=1"]
    return [*line, *SMALL, f"out={tmp_path / 'out'}"]


def rows_of(tmp_path: Path) -> dict[str, dict[str, Any]]:
    lines = (tmp_path / "out/checks.jsonl").read_text().splitlines()
    return {row["quantization"]: row for row in map(json.loads, lines)}


def test_options_are_measured_against_full_precision_or_refused_in_the_table(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("bitsandbytes", reason="the extra `quantization` is not installed")
    assert door.check([*words, "quantization=bf16,bnb_nf4,torchao_fp8dyn,bnb_fp8"]) == 0
    rows = rows_of(tmp_path)
    assert list(rows) == ["none", "bf16", "bnb_nf4"]
    none, bf16, nf4 = rows.values()
    assert (none["kl"], none["top1"], none["entropy_shift"]) == (0, 1, 0)
    assert 0 < bf16["kl"] < 0.01 < nf4["kl"] and bf16["entropy_shift"] != 0
    assert none["positions"] == nf4["positions"] == 96 - 3
    assert none["bytes"] > bf16["bytes"] > nf4["bytes"]
    for row in rows.values():
        assert row["tokens_per_second"] > 0 and row["load_seconds"] > 0 and row["perplexity"] > 1
        assert sum(row["parts"]["base"].values()) <= row["bytes"]
        assert row["cache"]["bytes_of_sequence"]["1024"] > 0
    told = capsys.readouterr().out
    assert "refused: torchao_fp8dyn: quantization=torchao_fp8dyn does not run on cpu" in told
    assert "refused: bnb_fp8" in told and "base, uint8" in told
    lines = list(csv.DictReader((tmp_path / "out/checks.csv").open()))
    assert [line["quantization"] for line in lines][3:] == ["torchao_fp8dyn", "bnb_fp8"]
    assert float(lines[1]["bytes_share"]) == pytest.approx(0.5, abs=0.01)
    picture = (tmp_path / "out/checks.svg").read_text()
    assert picture.count('fill="#4477aa"') == 3 * 4 and "bnb_nf4" in picture


def test_what_is_measured_is_not_measured_again(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []
    real = measure._Comparison.row_of

    def counting(self: Any, name: str, backend: Any, needed: bool) -> Any:
        measured.append(name)
        return real(self, name, backend, needed)

    monkeypatch.setattr(measure._Comparison, "row_of", counting)
    assert door.check([*words, "quantization=fp32"]) == 0
    assert door.check([*words, "quantization=fp32"]) == 0
    assert measured == ["none", "fp32"]
    path = tmp_path / "out/checks.jsonl"
    path.write_bytes(path.read_bytes() + b'{"key": "torn')
    assert door.check([*words, "quantization=fp32,bf16"]) == 0
    assert measured == ["none", "fp32", "none", "bf16"], "the reference's logits are not kept"
    assert door.check([*words, "quantization=fp32", "check.tokens=64"]) == 0
    assert measured[4:] == ["none", "fp32"]


def test_an_option_that_breaks_is_told_and_the_others_are_measured(
    tmp_path: Path,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    real = HfBackend.read_logits

    async def broken(self: HfBackend, *given: Any) -> None:
        if self.identity()["dtype"] == "float16":
            raise RuntimeError("no kernel for this")
        await real(self, *given)

    monkeypatch.setattr(HfBackend, "read_logits", broken)
    assert door.check([*words, "quantization=fp16,bf16"]) == 1
    assert list(rows_of(tmp_path)) == ["none", "bf16"]
    assert "failed: fp16: RuntimeError: no kernel for this" in capsys.readouterr().out


def test_without_a_list_every_option_is_tried_under_one_name() -> None:
    names = door.options_of(["model=smollm2"])
    assert {"none", "bnb_nf4", "torchao_fp8dyn", "dynamic_int8"} <= set(names)
    assert not {"fp8", "bnb_4bit", "dynamic"} & set(names)
    assert door.options_of(["quantization=[fp32, bf16]"]) == ["fp32", "bf16"]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["quantization=fp31"], "quantization must be one of"),
        (["backend=echo"], "backend must be hf, whose logits can be read, got 'echo'"),
        (["check.text=nothing.txt"], "check.text must name a file of text"),
        (["quantization="], "quantization must name options, or be left"),
        (["check.length=1"], "check.length must be 2 or more"),
        (["check.reference=torchao_fp8dyn"], "does not run on cpu"),
        (["check.wrong=1"], "there is no check.wrong"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    words: list[str], more: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if more[0].startswith("backend"):
        words = [word for word in words if not word.startswith("backend")]
    status = ended(lambda: door.check([*words, *more]))
    told = capsys.readouterr()
    assert sentence in told.err + told.out
    assert status == 2
