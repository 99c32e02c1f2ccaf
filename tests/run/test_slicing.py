"""Which examples a run takes."""

import pytest

from pipeline.protocols import Example
from pipeline.run.slicing import select
from pipeline.spec import Run, SpecError

TEN = [Example(f"e{i}", f"question {i}") for i in range(10)]


def ids(run: Run, examples: list[Example] = TEN) -> list[str]:
    return [example.id for example in select(examples, run)]


def test_all_examples_in_order_by_default() -> None:
    assert select(TEN, Run()) == TEN


def test_start_and_limit_cut_from_the_front() -> None:
    assert ids(Run(start=3, limit=2)) == ["e3", "e4"]
    assert ids(Run(start=8, limit=99)) == ["e8", "e9"]
    assert ids(Run(start=7)) == ["e7", "e8", "e9"]


def test_from_end_takes_the_last_in_order() -> None:
    assert ids(Run(from_end=3)) == ["e7", "e8", "e9"]
    assert ids(Run(from_end=99)) == [e.id for e in TEN]


def test_a_larger_limit_extends_a_smaller_one_also_when_shuffled() -> None:
    few, more = ids(Run(shuffle_seed=5, limit=3)), ids(Run(shuffle_seed=5, limit=7))
    assert more[:3] == few


def test_shuffle_does_not_depend_on_position() -> None:
    assert ids(Run(shuffle_seed=1)) == ids(Run(shuffle_seed=1), TEN[::-1])
    assert ids(Run(shuffle_seed=1)) != ids(Run(shuffle_seed=2))
    assert sorted(ids(Run(shuffle_seed=1))) == sorted(e.id for e in TEN)


def test_shuffle_keeps_relative_order_when_an_example_goes() -> None:
    whole = ids(Run(shuffle_seed=1))
    without = ids(Run(shuffle_seed=1), [e for e in TEN if e.id != "e4"])
    assert without == [name for name in whole if name != "e4"]


def test_ids_filter_keeps_the_order_of_the_data() -> None:
    assert ids(Run(ids=["e7", "e2"])) == ["e2", "e7"]


def test_slice_counts_within_the_filtered_ids() -> None:
    assert ids(Run(ids=["e7", "e2", "e5"], start=1, limit=1)) == ["e5"]


@pytest.mark.parametrize(
    ("run", "key", "value"),
    [
        (Run(ids=["e1", "nope"]), "run.ids", "nope"),
        (Run(ids=[]), "run.ids", "[]"),
        (Run(start=10), "run.start", "10"),
        (Run(from_end=2, start=1), "run.start", "from_end"),
        (Run(from_end=2, limit=1), "run.limit", "from_end"),
    ],
)
def test_a_slice_that_cannot_be_is_refused_by_name(run: Run, key: str, value: str) -> None:
    with pytest.raises(SpecError) as error:
        select(TEN, run)
    assert key in str(error.value)
    assert value in str(error.value)


def test_an_empty_data_set_is_refused() -> None:
    with pytest.raises(SpecError, match=r"task\.data"):
        select([], Run())
