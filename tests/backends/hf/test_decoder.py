"""The decoder of slots makes the rows of the reference, whatever shares its steps."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.protocols import Generation, Request
from tests.fakes.slots import MIXED, backend, decode, requests, same
from tests.fakes.tiny_models import ARCHITECTURES, tiny

ASKED = requests(6, MIXED, samples=2, caps=(1, 16))

Models = Callable[[str], Path]


@pytest.fixture(scope="module")
def models(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Models:
    made: dict[str, Path] = {}

    def model(kind: str) -> Path:
        if kind not in made:
            made[kind] = tiny(kind, smollm2, tmp_path_factory.mktemp(kind))
        return made[kind]

    return model


@pytest.fixture(scope="module")
def reference(models: Models) -> Callable[[str], list[Generation]]:
    made: dict[str, list[Generation]] = {}

    def rows(kind: str) -> list[Generation]:
        if kind not in made:
            made[kind] = decode(backend(models(kind), decoder="generate", batch_size=7), ASKED)
        return made[kind]

    return rows


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_rows_equal_those_of_generate(
    kind: str, models: Models, reference: Callable[[str], list[Generation]]
) -> None:
    rows = decode(backend(models(kind), decoder="slots", slots=6), ASKED)
    for ours, theirs in zip(rows, reference(kind), strict=True):
        same(ours, theirs)


@pytest.mark.parametrize(("slots", "share"), [(1, True), (3, False), (64, True)])
def test_rows_do_not_depend_on_slots_order_or_sharing(
    slots: int, share: bool, models: Models, reference: Callable[[str], list[Generation]]
) -> None:
    asked: list[Request] = ASKED[::-1] if slots > 1 else ASKED
    rows = decode(backend(models("llama"), decoder="slots", slots=slots, share=share), asked)
    expected = reference("llama")
    for ours, theirs in zip(rows, expected[::-1] if slots > 1 else expected, strict=True):
        same(ours, theirs)
