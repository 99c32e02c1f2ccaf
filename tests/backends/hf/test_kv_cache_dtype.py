"""Keys and values in 8 bits: rows stay their own, are near the exact ones, and are told apart."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from components.backends.hf.slots.kv_cache import FP8, as_cached
from pipeline.spec import Sampling, SpecError
from tests.fakes.slots import MIXED, backend, decode, requests, same

ASKED = requests(5, MIXED, samples=2, caps=(4, 16))


@pytest.mark.parametrize("slots", [3, 64])
def test_rows_of_an_8_bit_cache_do_not_depend_on_slots_order_or_sharing(
    slots: int, tiny_llama: Callable[..., Path]
) -> None:
    folder = tiny_llama()
    alone = decode(backend(folder, slots=1, share=False, kv_cache_dtype="fp8"), ASKED)
    together = decode(backend(folder, slots=slots, kv_cache_dtype="fp8"), ASKED[::-1])
    for left, right in zip(alone, together[::-1], strict=True):
        same(left, right)


def test_an_8_bit_cache_moves_entropies_a_little(tiny_llama: Callable[..., Path]) -> None:
    asked = requests(4, [Sampling(temperature=0)], caps=(1, 1))
    folder = tiny_llama(initializer_range=0.05)
    exact = decode(backend(folder), asked)
    coarse = decode(backend(folder, kv_cache_dtype="fp8"), asked)
    moved = [
        abs(left.entropies[0] - right.entropies[0])
        for left, right in zip(exact, coarse, strict=True)
        if left.entropies and right.entropies
    ]
    assert len(moved) == 4 and 1e-5 < max(moved) < 0.3


def test_values_beyond_8_bits_become_the_largest() -> None:
    values = torch.tensor([1e4, -1e4, 1.0])
    assert as_cached(values, FP8).float().tolist() == [448.0, -448.0, 1.0]


def test_an_8_bit_cache_is_part_of_what_a_row_is(tiny_llama: Callable[..., Path]) -> None:
    usual, coarse = backend(tiny_llama()), backend(tiny_llama(), kv_cache_dtype="fp8")
    assert {**usual.identity(), "kv_cache_dtype": "fp8"} == coarse.identity()


def test_an_8_bit_cache_is_refused_where_no_such_cache_is(tiny_llama: Callable[..., Path]) -> None:
    with pytest.raises(SpecError, match="backend.kv_cache_dtype must be auto with .*generate"):
        backend(tiny_llama(), decoder="generate", kv_cache_dtype="fp8")
    with pytest.raises(SpecError, match="backend.kv_cache_dtype must be one of"):
        backend(tiny_llama(), kv_cache_dtype="int8")
    bdh = Path("examples/models/bdh_tiny")
    made = backend(bdh, attention="eager", kv_cache_dtype="fp8")
    with pytest.raises(SpecError, match="keeps a state instead of keys and values"):
        decode(made, ASKED[:1])
