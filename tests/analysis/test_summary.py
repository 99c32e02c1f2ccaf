"""Seed S0's tables on rows small enough to work every number out by hand."""

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from pipeline.analysis import summary
from pipeline.analysis.row_files import find
from pipeline.analysis.table import Table, load
from tests.fakes.stored_rows import one, row, write_rows

# Step 0: problem A has two samples, B two, C one without pass 2. Step 50: one row.
ROWS = [
    row(
        "A",
        0,
        one(False, 1.0, entropy_think=1.5, entropy_answer=0.5, valid_tag_structure=True),
        one(True, 0.5, entropy_think=0.6, improved_over_pass1=True, valid_tag_structure=True),
        step=0,
    ),
    row(
        "A",
        1,
        one(True, 2.0, entropy_think=2.5, entropy_answer=1.5, valid_tag_structure=False),
        one(True, 0.75, entropy_think=0.8, improved_over_pass1=False, valid_tag_structure=True),
        step=0,
    ),
    row(
        "B",
        0,
        one(False, 3.0, soft_reward=0.25, valid_tag_structure=True),
        one(True, None, soft_reward=0.5, improved_over_pass1=True, valid_tag_structure=False),
        step=0,
    ),
    row(
        "B",
        1,
        one(None, None, **{"soft reward": 0.75}),
        one(False, 1.0, soft_reward=0.0, improved_over_pass1=False),
        step=0,
    ),
    row("C", 0, one(True, 4.0, valid_tag_structure=True), {}, step=0),
    row("A", 0, one(False), None, step=50),
]
STEP_0 = {
    "n1S": 5,  # A0 A1 B0 B1 C0
    "acc1S_pct": 40.0,  # A1 and C0 of 5; B1 without a verdict counts as wrong
    "acc1E_pct": 100 * 2 / 3,  # A by its sample 1, and C, of A B C
    "ent1": 2.5,  # (1 + 2 + 3 + 4) / 4; B1 has none
    "t1": 2.0,  # (1.5 + 2.5) / 2
    "a1": 1.0,  # (0.5 + 1.5) / 2
    "soft1S": 0.5,  # (0.25 + 0.75) / 2, one of them spelled with a blank
    "soft1E": 0.75,  # B's best; A and C have none
    "n2S": 4,
    "acc2S_pct": 75.0,  # A0 A1 B0 of 4
    "acc2E_pct": 100 * 2 / 3,  # A and B, of all three examples
    "ent2": 0.75,  # (0.5 + 0.75 + 1) / 3
    "t2": 0.7,  # (0.6 + 0.8) / 2
    "a2": math.nan,
    "soft2S": 0.25,  # (0.5 + 0) / 2
    "soft2E": 0.5,
    "impS_pct": 50.0,  # A0 and B0 of 4
    "impE_pct": 100 / 3,  # B: right in pass 2 and never in pass 1. A was right once
    "tag1_pct": 60.0,  # A0 B0 C0 of 5; B1 does not say
    "tag2_pct": 50.0,  # A0 A1 of 4
}
STEP_50 = dict.fromkeys(STEP_0, math.nan) | {
    "n1S": 1,
    "acc1S_pct": 0.0,
    "acc1E_pct": 0.0,
    "n2S": 0,
    "acc2E_pct": 0.0,  # its one example is never right in a pass 2 that it does not have
    "impE_pct": 0.0,
    "tag1_pct": 0.0,
}


@pytest.fixture
def small(tmp_path: Path) -> Table:
    return load(find([write_rows(tmp_path / "step0000_test.jsonl", ROWS)]))


def test_the_table_by_step_is_the_one_worked_out_by_hand(small: Table) -> None:
    zero, fifty = summary.steps(small).to_dict("records")
    assert zero == pytest.approx({"step": 0} | STEP_0, nan_ok=True)
    assert fifty == pytest.approx({"step": 50} | STEP_50, nan_ok=True)


def test_the_table_by_example_is_the_one_worked_out_by_hand(small: Table) -> None:
    assert summary.examples(small).to_dict("tight")["data"] == [
        [0, "A", 1, 1, 0],
        [0, "B", 0, 1, 1],
        [0, "C", 1, 0, 0],
        [50, "A", 0, 0, 0],
    ]


def test_runs_are_pooled_by_step_and_told_apart_when_asked(tmp_path: Path) -> None:
    for run, right in (("good", True), ("bad", False)):
        path = tmp_path / run / "step-0/step0000_test.jsonl"
        write_rows(path, [row("A", 0, one(right)), row("B", 0, one(right))])
    table = load(find([tmp_path]))
    [pooled] = summary.steps(table).to_dict("records")
    assert (pooled["n1S"], pooled["acc1S_pct"], pooled["acc1E_pct"]) == (4, 50, 100)
    apart = summary.steps(table, by=("run", "step"))
    assert dict(zip(apart["run"], apart["acc1E_pct"], strict=True)) == {"good": 100, "bad": 0}


def test_means_of_passes_leave_out_what_is_missing(tmp_path: Path) -> None:
    rows = [
        row("A", 0, one(True, 1.0, tokens_total=30, seconds=2.0, stop_reason_think="stop_token")),
        row("B", 0, one(False, None, tokens_total=10, seconds=2.0, finish_reason="length")),
        row("C", 0, one(None, 3.0, stop_reason_think="max_new_tokens", valid_tag_structure=False)),
    ]
    table = load(find([write_rows(tmp_path / "step0_test.jsonl", rows)]))
    [found] = summary.passes(table).to_dict("records")
    expected: dict[str, Any] = {
        "rows": 3,
        "examples": 3,
        "accuracy": 0.5,
        "entropy": 2.0,
        "tokens": 20.0,
        "tokens_per_second": 10.0,  # (30 + 10) tokens in (2 + 2) seconds
        "no_answer": 1 / 3,
        "truncated": 2 / 3,
        "tag_violations": 1.0,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_tokens_per_second_are_of_samples_that_say_both(tmp_path: Path) -> None:
    rows = [
        row("A", 0, one(True, 1.0, tokens_total=30, seconds=2.0)),
        row("B", 0, one(True, 1.0, tokens_total=500)),
        row("C", 0, one(True, 1.0, seconds=7.0)),
    ]
    table = load(find([write_rows(tmp_path / "step0_test.jsonl", rows)]))
    [found] = summary.passes(table).to_dict("records")
    assert found["tokens_per_second"] == 15.0  # 30 tokens in 2 seconds
    assert (found["tokens"], found["seconds"]) == (265.0, 4.5)  # means over those that say it


def test_attempts_of_writers_under_way_are_counted(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "step0_test.jsonl", [row("A", 0, one(True, 1.0))])
    attempt = {"status": "running", "rows": 2, "tokens": 10, "seconds": 4.0}
    record = {"attempts": [attempt | {"attempt": 1, "status": "killed"}]}
    (tmp_path / "run.json").write_text(json.dumps(record))
    for number in (2, 3):
        about = attempt | {"attempt": number, "peak_memory_mib": number}
        (tmp_path / f"attempt-{number}.json").write_text(json.dumps(about))
    [found] = summary.attempts(load(find([path]))).to_dict("records")
    assert (found["attempts"], found["rows"], found["tokens"]) == (3, 6, 30)
    assert (found["seconds"], found["tokens_per_second"]) == (12.0, 2.5)
    assert found["peak_memory_mib"] == 3, "the most of any process"


def drawn(rng: random.Random) -> dict[str, Any]:
    """A pass object, or none, with whatever old files have in it."""
    kinds: list[Any] = [None, {}, *["pass"] * 6]
    if rng.choice(kinds) != "pass":
        return {}
    fields: dict[str, Any] = one(rng.choice([True, False, None]))
    for name in ("entropy", "entropy_think", "entropy_answer"):
        fields[name] = rng.choice([None, rng.random() * 3, math.nan])
    fields[rng.choice(["soft_reward", "soft reward"])] = rng.choice([None, rng.random()])
    fields["valid_tag_structure"] = rng.choice([True, False, None])
    fields["improved_over_pass1"] = rng.choice([True, False, None])
    for name in rng.sample(sorted(fields), rng.randint(0, 2)):
        del fields[name]
    return fields


def by_loops(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The table's numbers with loops over rows, straight from their definitions."""

    def mean(values: list[Any]) -> float:
        kept = [v for v in values if v is not None and not math.isnan(v)]
        return sum(kept) / len(kept) if kept else math.nan

    found: dict[str, Any] = {}
    problems = {row["problem"] for row in rows}
    right: dict[str, set[str]] = {}
    for number in ("1", "2"):
        order = ("pass1",) if number == "1" else ("pass2", "pass2c", "pass2b", "pass2a")
        chosen = [(r["problem"], next((r[n] for n in order if r.get(n)), None)) for r in rows]
        there = [(problem, fields) for problem, fields in chosen if fields]
        fields = [f for _, f in there]
        soft = [(p, f.get("soft_reward", f.get("soft reward"))) for p, f in there]
        best = [[s for q, s in soft if q == p and s is not None] for p in problems]
        right[number] = {p for p, f in there if f.get("is_correct_pred")}
        count = len(fields) or math.nan
        found |= {
            f"n{number}S": len(fields),
            f"acc{number}S_pct": 100 * sum(bool(f.get("is_correct_pred")) for f in fields) / count,
            f"acc{number}E_pct": 100 * len(right[number]) / len(problems),
            f"ent{number}": mean([f.get("entropy") for f in fields]),
            f"t{number}": mean([f.get("entropy_think") for f in fields]),
            f"a{number}": mean([f.get("entropy_answer") for f in fields]),
            f"soft{number}S": mean([s for _, s in soft]),
            f"soft{number}E": mean([max(values) for values in best if values]),
            f"tag{number}_pct": 100
            * sum(bool(f.get("valid_tag_structure")) for f in fields)
            / count,
        }
        found["impS_pct"] = 100 * sum(bool(f.get("improved_over_pass1")) for f in fields) / count
    return found | {"impE_pct": 100 * len(right["2"] - right["1"]) / len(problems)}


@pytest.mark.parametrize("seed", range(8))
def test_the_table_is_what_loops_over_the_rows_give(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    rows = [
        row(
            f"p{rng.randint(0, 9)}", i, drawn(rng), drawn(rng), pass2a=drawn(rng), pass2c=drawn(rng)
        )
        for i in range(60)
    ]
    [found] = summary.steps(load(find([write_rows(tmp_path / "step7.jsonl", rows)]))).to_dict(
        "records"
    )
    assert found == pytest.approx({"step": 7} | by_loops(rows), nan_ok=True)
