"""Threads that share a step: the same rows, however many they are."""

import threading
from pathlib import Path

import pytest
import torch

from components.backends.hf.slots import torch_steps as plain
from components.backends.hf.slots.threads import ThreadTeam, balanced_groups
from components.backends.hf.slots.torch_steps import TorchSteps
from tests.fakes.slots import MIXED, backend, decode, requests, same
from tests.fakes.tiny_models import tiny


def test_rows_are_equal_whether_or_not_threads_share_a_step(
    smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny("llama", smollm2, tmp_path)
    asked = requests(11, MIXED, samples=4, caps=(2, 12))
    real, sizes = TorchSteps._decode, []

    def noted(self: TorchSteps, rows: list[object]) -> object:
        sizes.append((len(rows), threading.current_thread().name))
        return real(self, rows)  # type: ignore[arg-type]

    monkeypatch.setattr(TorchSteps, "_decode", noted)
    monkeypatch.setattr(plain, "TOKENS_PER_THREAD", 8)
    shared = decode(backend(folder, decoder="slots", slots=44, threads=3), asked)
    assert {name for _, name in sizes} >= {"decoder_0", "decoder_1"}
    sizes.clear()
    alone = decode(backend(folder, decoder="slots", slots=7, threads=1), asked)
    assert max(size for size, _ in sizes) <= 7
    for ours, theirs in zip(shared, alone, strict=True):
        same(ours, theirs)


def test_every_thread_computes_on_one_core_and_a_lone_part_on_all() -> None:
    shards, before = ThreadTeam(), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert shards.run(lambda _: torch.get_num_threads(), [0]) == [2]
        assert shards.run(lambda _: torch.get_num_threads(), [0, 1]) == [1, 1]
        assert torch.get_num_threads() == 2
    finally:
        shards.close()
        torch.set_num_threads(before)


def test_a_part_that_fails_is_told_once_all_are_over() -> None:
    shards, started, done = ThreadTeam(), threading.Event(), []
    before = torch.get_num_threads()
    torch.set_num_threads(2)

    def work(part: str) -> None:
        if part == "fails":
            started.wait(10)
            raise ValueError(part)
        started.set()
        done.append(part)

    try:
        with pytest.raises(ValueError, match="fails"):
            shards.run(work, ["fails", "works"])
        assert done == ["works"]
    finally:
        shards.close()
        torch.set_num_threads(before)


def test_parts_are_shared_out_evenly_and_none_is_empty() -> None:
    assert balanced_groups([5, 1, 4, 2], 2) == [[0, 1], [2, 3]]
    assert balanced_groups([3], 4) == [[0]]
    assert sorted(place for group in balanced_groups([9, 1, 1, 7, 3], 3) for place in group) == [
        *range(5)
    ]
