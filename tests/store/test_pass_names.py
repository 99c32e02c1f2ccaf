"""Which passes a row has, and how they are called."""

from typing import Any

import pytest

from pipeline.store.files import StoreError
from pipeline.store.pass_names import (
    LETTERED,
    distinct_passes,
    free_names,
    later_passes,
    name_passes,
    passes_with_output,
    repeats,
    stored_passes,
)


def later(cue: str, control: bool = False) -> dict[str, Any]:
    fields = {"output": f"after {cue}", "cue": cue, "cue_hash": f"hash of {cue}"}
    return fields | {"control": control, "token_ids": [1, 2], "reconsider_markers": ["x"]}


ROW = {"example_id": "e", "sample_idx": 0, "pass1": {"output": "first"}}


def test_a_single_later_pass_is_pass2_and_none_is_null() -> None:
    assert name_passes([later("wait")]) == {"pass2": later("wait")}
    assert name_passes([]) == {"pass2": None}
    assert stored_passes(ROW | name_passes([])) == []


def test_several_get_letters_as_they_come_and_pass2_repeats_the_last_that_is_no_control() -> None:
    passes = [later("wait"), later("neutral", control=True)]
    named = name_passes(passes)
    assert list(named) == ["pass2a", "pass2b", "pass2"]
    assert named["pass2"]["cue"] == "wait" and "token_ids" not in named["pass2"]
    assert named["pass2"]["reconsider_markers"] == ["x"]
    assert [name for name in named if repeats(name, named)] == ["pass2"]
    assert stored_passes(ROW | named) == passes


def test_a_row_of_26_cues_is_read_back_in_their_order() -> None:
    passes = [later(str(number)) for number in range(26)]
    assert stored_passes(ROW | name_passes(passes)) == passes


@pytest.mark.parametrize("broken", [{"pass1": None}, {"pass2a": 3}, {"pass2": {"output": "x"}}])
def test_a_stored_row_whose_pass_is_none_of_this_version_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(StoreError, match="remove the line"):
        stored_passes(ROW | broken)


def test_rows_of_any_version_show_each_pass_once() -> None:
    named = name_passes([later("a"), later("b")])
    assert list(distinct_passes(ROW | named)) == ["pass1", "pass2a", "pass2b"]
    assert list(distinct_passes({"output": "alone", "entropy": 1.0})) == ["pass1"]
    other = ROW | named | {"pass2": later("another")}
    assert list(distinct_passes(other)) == ["pass1", "pass2a", "pass2b", "pass2"]
    assert [fields["cue"] for fields in later_passes(other)] == ["a", "b", "another"]
    assert list(passes_with_output(other)) == ["pass1", "pass2a", "pass2b", "pass2"]
    assert free_names(other) == list(LETTERED[2:])
