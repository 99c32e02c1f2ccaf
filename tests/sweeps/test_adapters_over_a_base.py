"""Adapters over one base in a sweep: it is read once, and every row is that of a run alone."""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from components.backends.hf.backend import HfBackend
from components.models.shared_base import SharedBase
from launch.config.setup import RunSetup, setup_of
from launch.sweeps.packs import by_load, pack, succession
from launch.sweeps.points import SweepPoint
from pipeline.run.executor import execute
from pipeline.store.row_index import read_rows
from tests.fakes.configs import composed, point_of
from tests.fakes.tiny_models import random_adapter
from tests.run.test_executor import stable
from tests.test_run import run
from tests.test_run_hf import differences

pytest.importorskip("peft", reason="the extra `lora` is not installed")
KEPT = "the base model is in memory already"


@pytest.fixture
def adapters(tiny_llama: Callable[..., Path], tmp_path: Path) -> tuple[Path, list[Path]]:
    """A base and two adapters of it with random factors."""
    base = tiny_llama()
    return base, [random_adapter(base, tmp_path / f"adapter-{n}", n) for n in (1, 2)]


def line_of(base: Path, adapter: Path | None, root: Path, *more: str) -> list[str]:
    of = [] if adapter is None else [f"model.adapter={adapter}"]
    return [
        *["task=crossword", "backend=hf", "model=local", f"model.path={base}", *of],
        *["backend.device=cpu", "quantization=fp32", "run.limit=2", "cue=wait"],
        *["sampling.think_cap=8", "sampling.answer_cap=4", f"run.root={root}", *more],
    ]


def setup(line: Sequence[str]) -> RunSetup:
    return setup_of(composed(*line), line)


def rows_of(lines: Sequence[list[str]]) -> tuple[list[Any], list[HfBackend]]:
    """The rows of points that follow each other, and the backends that made them."""
    rows, backends = [], []
    for backend, (of,) in succession([[setup(line)] for line in lines]):
        assert isinstance(backend, HfBackend)
        point = point_of(composed(*of.overrides), of.overrides, backend)
        (session,) = asyncio.run(execute([point], backend))
        assert session.status == "complete"
        rows += [stable(row) for row in read_rows(point.rows_path)]
        backends.append(backend)
    return rows, backends


@pytest.mark.parametrize(
    "how",
    [
        (),
        ("model.merge_adapter=false", "backend.decoder=generate"),
        ("quantization=dynamic_int8", "backend.slots=1"),  # its activations are scaled by batch
        ("quantization=bnb_nf4",),
    ],
    ids=lambda how: "-".join(how) or "merged",
)
def test_rows_of_points_that_share_a_base_are_those_of_runs_alone(
    adapters: tuple[Path, list[Path]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    how: tuple[str, ...],
) -> None:
    base, (first, second) = adapters
    order = [first, second]
    if "bnb" not in "".join(how):
        order.append(None)  # a base that a library quantizes is no base to merge into
    plain = [word for word in how if not word.startswith("model.")]

    def line(adapter: Path | None, root: Path, number: int) -> list[str]:
        words = plain if adapter is None else how
        return line_of(base, adapter, root, *words, f"run.name=point-{number}")

    caplog.set_level(logging.INFO)
    lines = [line(adapter, tmp_path / "shared", n) for n, adapter in enumerate(order)]
    shared, backends = rows_of(lines)
    assert caplog.text.count(KEPT) == len(order) - 1
    assert all(backend._base is None for backend in backends), "nothing is held at the end"
    caplog.clear()
    alone = []
    for number, adapter in enumerate(order):
        alone += rows_of([line(adapter, tmp_path / "alone", number)])[0]
    assert KEPT not in caplog.text
    assert differences(shared, alone) == []
    texts = {tuple(row["pass1"]["token_ids"]) for row in shared}
    assert len(texts) > 2, "adapters and examples make a difference"


def test_what_is_kept_is_never_changed(adapters: tuple[Path, list[Path]], tmp_path: Path) -> None:
    base, order = adapters

    def content(backend: HfBackend) -> dict[str, str]:
        assert backend._base is not None
        tensors = backend._base.tensors.items()
        return {n: hashlib.sha256(t.numpy().tobytes()).hexdigest() for n, t in tensors}

    loads = [[setup(line_of(base, adapter, tmp_path))] for adapter in (*order, None)]
    backends = [backend for backend, _ in succession(loads)]
    found = []
    for backend in backends[:2]:
        assert isinstance(backend, HfBackend)
        backend.preload()
        found.append(content(backend))
    assert found[0] == found[1] and found[0]


def test_weights_that_begin_at_one_address_keep_their_own_shapes() -> None:
    whole, config = torch.arange(12.0).view(4, 3), LlamaConfig(vocab_size=4, hidden_size=4,
        num_hidden_layers=0, num_attention_heads=1)  # fmt: skip
    model = LlamaForCausalLM(config)
    for name, tensor in {"whole": whole, "part": whole[:2], "none": whole[:0]}.items():
        model.register_buffer(name, tensor)
    shared = SharedBase()
    shared.keep(model)
    for name, tensor in {"whole": whole, "part": whole[:2], "none": whole[:0]}.items():
        assert torch.equal(shared.tensors[name], tensor)


def test_other_weights_types_and_places_share_nothing(
    adapters: tuple[Path, list[Path]], tiny_llama: Callable[..., Path], tmp_path: Path
) -> None:
    base, (first, second) = adapters
    other = tiny_llama(seed=5)

    def shares(*lines: list[str]) -> bool:
        backends = [backend for backend, _ in succession([[setup(line)] for line in lines])]
        return all(getattr(backend, "_base", None) is not None for backend in backends)

    def of(adapter: Path | None, *more: str) -> list[str]:
        return line_of(base, adapter, tmp_path, *more)

    assert shares(of(first), of(second)) and shares(of(None), of(second))
    assert shares(of(first), of(first, "model.merge_adapter=false"))
    assert not shares(of(None), of(None)), "points without an adapter are packed to share a load"
    assert not shares(of(first), line_of(other, second, tmp_path))
    assert not shares(of(first), of(second, "quantization=bf16"))
    assert not shares(of(first), of(second, "model.attn_implementation=eager"))
    assert not shares(of(first), of(None, "quantization=bnb_nf4"))
    assert not shares(of(first, "backend.device_map=auto", "backend.device=auto"), of(second))


def test_adapters_that_are_packed_run_one_after_the_other_in_one_job(
    adapters: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    base, (first, second) = adapters

    def sizes(names: str) -> list[list[int]]:
        made = [
            setup(line_of(base, adapter, tmp_path, f"run.seed={seed}", f"run.pack=[{names}]"))
            for adapter in (first, second)
            for seed in (1, 2)
        ]
        groups = pack([SweepPoint(each) for each in made])
        return [[len(s) for s in by_load([m.setup for m in group])] for group in groups]

    assert sizes("seed") == [[2], [2]]
    assert sizes("adapter") == [[1, 1], [1, 1]]
    assert sizes("adapter,seed") == [[2, 2]]


@pytest.mark.parametrize("place", ["cluster=local", "cluster=debug"])
def test_a_sweep_that_is_typed_reads_the_base_once(
    adapters: tuple[Path, list[Path]], tmp_path: Path, place: str
) -> None:
    base, (first, second) = adapters
    line = line_of(base, None, tmp_path / "runs", place, "cue=none", "run.limit=1")
    swept = [f"model.adapter={first},{second},null", "run.pack=[adapter]"]
    run("-m", *line, *swept)
    logs = [path.read_text() for path in sorted((tmp_path / "runs").rglob("log*.txt"))]
    assert len(logs) == 3 and sum(text.count(KEPT) for text in logs) == 2
    assert len(list((tmp_path / "runs").rglob("step*_test.jsonl"))) == 3
