"""pass@k and maj@k against every subset, avg@k and errors by hand, and k beyond the samples."""

import itertools
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pipeline.analysis.at_k import at_k, maj_at_k, pass_at_k
from pipeline.analysis.row_files import find
from pipeline.analysis.table import Table, load
from pipeline.spec import SpecError
from tests.fakes.stored_rows import one, row, write_rows


def by_all_subsets(samples: list[bool], k: int) -> float:
    subsets = list(itertools.combinations(samples, k))
    return sum(any(subset) for subset in subsets) / len(subsets)


@pytest.mark.parametrize("n", range(1, 9))
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(n: int) -> None:
    for right, k in itertools.product(range(n + 1), range(1, n + 1)):
        samples = [True] * right + [False] * (n - right)
        got = pass_at_k(np.array([n]), np.array([right]), k)[0]
        assert got == pytest.approx(by_all_subsets(samples, k), abs=1e-12)


def vote(answers: tuple[str | None, ...], right: str) -> float:
    counts = Counter(answer for answer in answers if answer is not None)
    top = max(counts.values(), default=0)
    winners = [answer for answer, count in counts.items() if count == top]
    return (right in winners) / len(winners) if winners else 0.0


@pytest.mark.parametrize(
    "answers", ["a", "aab", "abc", "aabb-", "--a", "aaabbcc", "abcd--", "aaaa", "bbba-a"]
)
def test_maj_at_k_is_the_mean_vote_over_subsets(answers: str) -> None:
    given = [None if letter == "-" else letter for letter in answers]
    counts = Counter(letter for letter in given if letter)
    votes = [(count, float(letter == "a")) for letter, count in counts.items()]
    for k in range(1, len(given) + 1):
        subsets = list(itertools.combinations(given, k))
        expected = sum(vote(subset, "a") for subset in subsets) / len(subsets)
        assert maj_at_k(votes, given.count(None), k) == pytest.approx(expected, abs=1e-12)


@pytest.fixture
def samples(tmp_path: Path) -> Table:
    """Problem A: right, right, wrong, none. B: wrong, wrong, wrong, right. One pass."""
    rows = [
        row(
            problem,
            sample,
            one(right) if right is not None else one(False, pred_answer="", pred_answer_canon=None),
        )
        for problem, verdicts in {
            "A": (True, True, False, None),
            "B": (False, False, False, True),
        }.items()
        for sample, right in enumerate(verdicts)
    ]
    return load(find([write_rows(tmp_path / "step0_test.jsonl", rows)]))


def test_estimates_over_examples_and_their_errors_are_those_worked_out_by_hand(
    samples: Table,
) -> None:
    found = at_k(samples).set_index("k")
    assert list(found.index) == [1, 2, 4]
    # A: 2 of 4, B: 1 of 4. Standard error of two values: half their difference.
    assert found["avg_at_k"].tolist() == pytest.approx([0.375] * 3)
    assert found["avg_at_k_se"].tolist() == pytest.approx([0.125] * 3)
    # 1 - C(2,k)/C(4,k) for A, 1 - C(3,k)/C(4,k) for B.
    assert found["pass_at_k"].tolist() == pytest.approx([0.375, (5 / 6 + 1 / 2) / 2, 1.0])
    assert found["pass_at_k_se"].tolist() == pytest.approx([0.125, (5 / 6 - 1 / 2) / 2, 0.0])
    # A: pairs yy ynx2 y-x2 n-: (1 + 2/2 + 2 + 0) / 6; B: pairs nn x3 ny x3: (0 + 3/2) / 6.
    assert found["maj_at_k"].tolist() == pytest.approx([0.375, (4 / 6 + 1 / 4) / 2, 0.5])


def test_k_beyond_the_samples_at_hand_is_refused(samples: Table) -> None:
    with pytest.raises(SpecError, match="--k must lie between 1 and 4, .* got 5"):
        at_k(samples, [5])
    with pytest.raises(SpecError, match="got 0"):
        at_k(samples, [0])


def test_the_fewest_samples_of_an_example_bound_k(tmp_path: Path) -> None:
    rows = [row("A", 0, one(True)), row("A", 1, one(True)), row("B", 0, one(True))]
    table = load(find([write_rows(tmp_path / "step0_test.jsonl", rows)]))
    [found] = at_k(table).to_dict("records")
    assert found["k"] == 1 and math.isclose(found["pass_at_k"], 1)
    with pytest.raises(SpecError, match="between 1 and 1"):
        at_k(table, [2])


def test_rows_without_a_verdict_give_no_estimate(tmp_path: Path) -> None:
    rows = [row("A", 0, one(None)), row("B", 0, one(None))]
    table = load(find([write_rows(tmp_path / "step0_test.jsonl", rows)]))
    assert at_k(table).empty


def test_answers_without_a_canonical_form_do_not_vote_together(tmp_path: Path) -> None:
    odd = [one(False) | {"pred_answer": text, "pred_answer_canon": None} for text in ("a", "b")]
    rows = [row("A", i, fields) for i, fields in enumerate([one(True), *odd])]
    table = load(find([write_rows(tmp_path / "step0_test.jsonl", rows)]))
    assert at_k(table, [3])["maj_at_k"].tolist() == pytest.approx([1 / 3])


def table_of(tmp_path: Path, answers: dict[str, str]) -> Table:
    """Examples with their samples: R is right, - gives no answer, other letters are wrong."""
    rows = []
    for problem, letters in answers.items():
        for sample, letter in enumerate(letters):
            said = "" if letter == "-" else letter
            fields = one(letter == "R") | {"pred_answer": said, "pred_answer_canon": said}
            rows.append(row(problem, sample, fields))
    return load(find([write_rows(tmp_path / "step0_test.jsonl", rows)]))


def maj_by_all_subsets(answers: dict[str, str], k: int) -> float:
    """The mean over examples of the mean vote over every subset."""
    means = []
    for letters in answers.values():
        given = [None if letter == "-" else letter for letter in letters]
        subsets = list(itertools.combinations(given, k))
        means.append(sum(vote(subset, "R") for subset in subsets) / len(subsets))
    return sum(means) / len(means)


def test_silent_samples_are_not_taken_for_votes_of_another_example(tmp_path: Path) -> None:
    answers = {"a": "RR--", "b": "RRxx"}
    found = at_k(table_of(tmp_path, answers)).set_index("k")["maj_at_k"]
    # a: 2 right and nobody else; b: a tie of two, in pairs 1/6 + 4/6 / 2.
    assert found[4] == pytest.approx((1 + 1 / 2) / 2)
    assert found[2] == pytest.approx((5 / 6 + 1 / 2) / 2)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(1, 6).flatmap(
        lambda n: st.lists(st.text("R-xyz", min_size=n, max_size=n), min_size=1, max_size=8)
    )
)
@example(["RR--", "RRxx"])
@example(["R-", "Rx", "--", "xx"])
def test_maj_at_k_of_any_examples_is_that_of_every_subset(
    tmp_path: Path, samples: list[str]
) -> None:
    answers = {f"p{i}": letters for i, letters in enumerate(samples)}
    for line in at_k(table_of(tmp_path, answers)).to_dict("records"):
        assert line["maj_at_k"] == pytest.approx(maj_by_all_subsets(answers, line["k"]), abs=1e-9)
