"""Pairs of two runs: one to one, and with a p-value that knows of examples."""

from pathlib import Path
from typing import Any

import pytest

from launch.reporting.charts import labelled
from launch.reporting.compare import NAMES, compared
from pipeline.analysis.row_files import find
from pipeline.analysis.table import Table, load
from tests.fakes.stored_rows import one, row, write_rows


def table_of(path: Path, rights: dict[tuple[int, str, int], bool], **more: Any) -> Table:
    """Rows by (seed, example, sample)."""
    rows = [row(e, s, one(right), seed=n, **more) for (n, e, s), right in rights.items()]
    # Each seed is a run of its own: rows of one folder would replace each other.
    for seed in {seed for seed, _, _ in rights}:
        mine = [r for r in rows if r["seed"] == seed]
        write_rows(path / f"seed{seed}/step0_test.jsonl", mine)
    return labelled(load(find([path])))


def counts(ours: Table, theirs: Table) -> tuple[list[int], str]:
    frame, about = compared(ours, theirs)
    return [int(n) for name in NAMES.values() for n in frame[name]], about


def test_samples_of_the_same_seed_are_pairs(tmp_path: Path) -> None:
    ours = {(n, e, s): True for n in (1, 2) for e in "AB" for s in (0, 1)}
    theirs = {key: key[0] == 1 for key in ours}
    found, about = counts(table_of(tmp_path / "a", ours), table_of(tmp_path / "b", theirs))
    assert found == [4, 4, 0, 0]
    assert about == (
        "Matched by task, example, sample, pass, step, temperature, seed: "
        "8 of 8 passes of the first, 8 of 8 of the second."
    )


def test_runs_of_different_seeds_are_paired_by_the_rest(tmp_path: Path) -> None:
    ours = {(1, e, s): True for e in "AB" for s in (0, 1)}
    theirs = {(2, e, s): s == 0 for e in "AB" for s in (0, 1, 2)}
    found, about = counts(table_of(tmp_path / "a", ours), table_of(tmp_path / "b", theirs))
    assert found == [2, 2, 0, 0]
    assert about.endswith("step, temperature: 4 of 4 passes of the first, 4 of 6 of the second.")


def test_no_sample_is_in_two_pairs(tmp_path: Path) -> None:
    ours = {(1, "A", 0): True, (2, "A", 0): False, (1, "B", 0): True}
    theirs = {(3, "A", 0): True, (3, "B", 0): False}
    # A has two samples on the first side that nothing tells apart from those of seed 3.
    found, about = counts(table_of(tmp_path / "a", ours), table_of(tmp_path / "b", theirs))
    assert found == [0, 1, 0, 0]
    assert about.endswith("1 of 3 passes of the first, 1 of 2 of the second.")


def test_the_p_value_keeps_samples_of_an_example_together(tmp_path: Path) -> None:
    ours = {(1, e, s): False for e in "AB" for s in range(8)}
    theirs = {(1, e, s): True for e in "AB" for s in range(8)}
    frame, _ = compared(table_of(tmp_path / "a", ours), table_of(tmp_path / "b", theirs))
    assert frame["p_signs"].tolist() == pytest.approx([1 / 2])
    assert frame["p_exact"].tolist() == pytest.approx([2 / 2**16])
