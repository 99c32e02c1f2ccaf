"""Statistics on rows built to have known values; formulas written out beside the library's."""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.proportion import proportion_confint

from pipeline.analysis import estimates
from pipeline.analysis.row_files import find
from pipeline.analysis.table import Table, load
from tests.fakes.stored_rows import one, row, write_rows


def table_of(tmp_path: Path, rows: list[dict[str, Any]]) -> Table:
    return load(find([write_rows(tmp_path / "run/step0_test.jsonl", rows)]))


def test_standard_errors_are_clustered_by_example(tmp_path: Path) -> None:
    # A: 1 1 1 1, B: 0 0 0 0, C: 1 1 0 0. Mean 1/2, residuals sum to 2, -2, 0 in the clusters.
    rights = {"A": (1, 1, 1, 1), "B": (0, 0, 0, 0), "C": (1, 1, 0, 0)}
    rows = [row(p, s, one(bool(r))) for p, v in rights.items() for s, r in enumerate(v)]
    [found] = estimates.accuracy(table_of(tmp_path, rows)).to_dict("records")
    assert found["accuracy"] == 0.5
    assert found["accuracy_se"] == pytest.approx(math.sqrt(3 / 2 * (2**2 + 2**2 + 0)) / 12)
    independent = 0.5 / math.sqrt(11)  # what it would be if the samples did not hang together
    assert found["accuracy_se"] > 1.9 * independent


def flip_rows(stay: int, lose: int, gain: int, never: int) -> list[dict[str, Any]]:
    kinds = [(True, True)] * stay + [(True, False)] * lose
    kinds += [(False, True)] * gain + [(False, False)] * never
    return [row(f"p{i}", 0, one(a), one(b)) for i, (a, b) in enumerate(kinds)]


def test_flips_are_counted_and_mcnemars_p_is_the_exact_binomial(tmp_path: Path) -> None:
    [found] = estimates.flips(table_of(tmp_path, flip_rows(10, 2, 9, 4))).to_dict("records")
    counts = ("right_right", "right_wrong", "wrong_right", "wrong_wrong")
    assert [found[name] for name in counts] == [10, 2, 9, 4]
    # Twice the chance of 2 or fewer losses among 11 flips of a fair coin.
    assert found["p_exact"] == pytest.approx(2 * (1 + 11 + 55) / 2**11)
    assert found["change"] == pytest.approx(7 / 25)


def test_every_cue_is_paired_with_the_same_pass_1(tmp_path: Path) -> None:
    cues = [{"cue": name, "cue_hash": name, "control": False} for name in "ab"]
    good, bad = one(True, **cues[0]), one(False, **cues[1])
    rows = [row("A", 0, one(False), bad, pass2a=good, pass2b=bad)]
    found = estimates.flips(table_of(tmp_path, rows)).set_index("cue")
    assert found.loc["a", "wrong_right"] == 1 and found.loc["b", "wrong_wrong"] == 1
    assert len(found) == 2


def test_rows_without_a_verdict_are_in_no_flip(tmp_path: Path) -> None:
    rows = [*flip_rows(1, 0, 1, 0), row("x", 0, one(None), one(True)), row("y", 0, one(True), {})]
    assert estimates.flips(table_of(tmp_path, rows))["rows"].tolist() == [2]


def test_the_odds_ratio_of_a_known_logit_comes_back(tmp_path: Path) -> None:
    draw = np.random.default_rng(7)
    entropy = draw.normal(2, 0.5, 4000)
    z = (entropy - entropy.mean()) / entropy.std(ddof=1)
    success = draw.random(4000) < 1 / (1 + np.exp(-(-0.5 + math.log(2.3) * z)))
    rows = [
        row(f"p{i}", 0, one(False, float(e)), one(bool(s)))
        for i, (e, s) in enumerate(zip(entropy, success, strict=True))
    ]
    [found] = estimates.entropy_odds(table_of(tmp_path, rows)).to_dict("records")
    assert found["low"] < 2.3 < found["high"]
    assert found["odds_ratio"] == pytest.approx(2.3, rel=0.1)
    assert found["entropy_sd"] == pytest.approx(0.5, rel=0.05)
    assert found["p"] < 1e-6 and found["note"] == ""


def test_the_odds_ratio_of_a_two_by_two_table_is_the_cross_product() -> None:
    # Entropy 0: 10 of 30 succeed; entropy 1: 20 of 30. Odds ratio between the two: 4.
    entropy = np.repeat([0.0, 1.0], 30)
    success = np.r_[np.ones(10), np.zeros(20), np.ones(20), np.zeros(10)]
    found = estimates.odds_ratio(success, entropy, np.arange(60))
    assert found["odds_ratio"] == pytest.approx(4 ** entropy.std(ddof=1), rel=1e-6)


@pytest.mark.parametrize(
    ("success", "entropy", "note"),
    [
        ([1, 1, 1, 1], [1, 2, 3, 4], "does not vary"),
        ([0, 1, 0, 1], [2, 2, 2, 2], "does not vary"),
        ([0, 0, 1, 1], [1, 2, 3, 4], "no fit"),
    ],
)
def test_where_there_is_no_odds_ratio_a_note_says_why(
    success: list[int], entropy: list[float], note: str
) -> None:
    found = estimates.odds_ratio(success, entropy, range(4))
    assert note in found["note"] and "odds_ratio" not in found


def test_accuracy_falls_into_quartiles_of_entropy(tmp_path: Path) -> None:
    rows = [row(f"p{i}", 0, one(i < 3, float(i))) for i in range(8)]
    found = estimates.entropy_quartiles(table_of(tmp_path, rows))
    assert found["quartile"].tolist() == ["lowest", "second", "third", "highest"]
    assert found["rows"].tolist() == [2, 2, 2, 2]
    assert found["accuracy"].tolist() == [1.0, 0.5, 0.0, 0.0]
    assert (found["entropy_from"].tolist(), found["entropy_to"].tolist()) == (
        [0, 2, 4, 6],
        [1, 3, 5, 7],
    )


def test_equal_entropies_share_a_part(tmp_path: Path) -> None:
    rows = [row(f"p{i}", 0, one(True, 1.0)) for i in range(4)]
    found = estimates.entropy_quartiles(table_of(tmp_path, rows))
    assert found[["quartile", "rows"]].to_numpy().tolist() == [["1 of 1", 4]]


def test_shifts_by_markers_and_by_a_judge_have_their_own_lines(tmp_path: Path) -> None:
    def shifted(marked: bool, judged: bool, right: bool) -> dict[str, Any]:
        return one(right, has_reconsider_cue=marked, shift_in_reasoning_v1=judged)

    firsts = [shifted(True, False, True), shifted(True, True, False), shifted(False, False, True)]
    firsts += [one(True, has_reconsider_cue=False)]
    rows = [row(f"p{i}", 0, first) for i, first in enumerate(firsts)]
    found = estimates.shifts(table_of(tmp_path, rows)).set_index("by")
    markers, judge = found.loc["markers"], found.loc["judge"]
    assert (markers["rows"], markers["share"]) == (4, 0.5)
    assert (markers["accuracy_with"], markers["accuracy_without"]) == (0.5, 1.0)
    assert (judge["rows"], judge["share"]) == (3, pytest.approx(1 / 3))
    assert (judge["accuracy_with"], judge["accuracy_without"]) == (0.0, 1.0)


def test_nothing_to_estimate_gives_empty_tables(tmp_path: Path) -> None:
    table = table_of(tmp_path, [])
    for estimate in (estimates.accuracy, estimates.flips, estimates.entropy_odds):
        assert estimate(table).empty
    assert estimates.entropy_quartiles(table).empty and estimates.shifts(table).empty


def test_means_of_passes_have_their_errors_beside_them(tmp_path: Path) -> None:
    rows = [row(f"p{i}", 0, one(i < 1, float(i)), one(True, 1.0)) for i in range(2)]
    found = estimates.passes(table_of(tmp_path, rows)).set_index("pass")
    assert found.loc["pass1", "accuracy"] == 0.5
    assert found.loc["pass1", "accuracy_se"] == pytest.approx(0.5)  # sqrt(2 x (0.25 + 0.25)) / 2
    assert found.loc["pass2", ["accuracy_se", "entropy_se"]].tolist() == pytest.approx([0, 0])
    assert list(found)[list(found).index("entropy") + 1] == "entropy_se"


@pytest.mark.parametrize(
    "sums", [[1], [1, -1], [3, 1, 1], [2, 2, -1, 0], [5, -1, -1, -1, 2], [0, 0], [4, 3, 2, 1, -2]]
)
def test_sign_flips_are_the_share_of_all_assignments_of_signs(sums: list[int]) -> None:
    flipped = [
        sum(sign * value for sign, value in zip(signs, sums, strict=True))
        for signs in itertools.product((1, -1), repeat=len(sums))
    ]
    share = sum(abs(total) >= abs(sum(sums)) for total in flipped) / len(flipped)
    assert estimates.sign_flips(sums) == pytest.approx(share)


def test_sign_flips_of_single_samples_are_mcnemars_exact_test() -> None:
    for lost, gained in ((0, 0), (3, 9), (40, 12), (700, 800)):
        sums = [-1] * lost + [1] * gained
        expected = mcnemar([[5, lost], [gained, 5]], exact=True).pvalue
        assert estimates.sign_flips(sums) == pytest.approx(expected, rel=1e-6)


def test_ten_samples_of_one_example_are_no_ten_examples(tmp_path: Path) -> None:
    rows = [row("A", i, one(False), one(True)) for i in range(10)]
    [found] = estimates.flips(table_of(tmp_path, rows)).to_dict("records")
    assert (found["p_exact"], found["p_signs"]) == (pytest.approx(2 / 1024), 1.0)


def test_the_odds_need_no_verdict_of_pass_1(tmp_path: Path) -> None:
    rows = [row(f"p{i}", 0, one(None, i % 4), one(i % 3 == 0)) for i in range(40)]
    table = table_of(tmp_path, rows)
    assert estimates.entropy_odds(table)["rows"].tolist() == [40]
    assert estimates.flips(table).empty


def test_the_interval_of_a_share_is_wilsons_for_single_samples() -> None:
    for right, count in ((0, 10), (3, 10), (10, 10), (1, 200)):
        values = [1] * right + [0] * (count - right)
        expected = proportion_confint(right, count, method="wilson")
        found = estimates.share_interval(values, range(count))
        assert found == pytest.approx(expected, abs=1e-9)


def test_the_interval_of_a_share_counts_examples_where_samples_of_one_agree() -> None:
    values, clusters = [1] * 8 + [0] * 24, np.repeat(range(4), 8)
    assert estimates.share_interval(values, clusters) == pytest.approx(
        proportion_confint(1, 4, method="wilson"), abs=1e-9
    )
    assert estimates.share_interval([0] * 32, clusters) == pytest.approx(
        proportion_confint(0, 4, method="wilson"), abs=1e-9
    )
    assert all(math.isnan(bound) for bound in estimates.share_interval([], []))
