"""Resume, added work, shared second passes, failures: with the echo backend and a toy task."""

import asyncio
import json
import random
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from components.backends.echo import Echo
from pipeline.protocols import Example, Generation, Request
from pipeline.run.executor import execute
from pipeline.run.point import Point, prepare
from pipeline.run.session import Session
from pipeline.spec import CueText, ModelSpec, Run, RunSpec, Sampling, SpecError
from pipeline.store.files import Row, StoreError, read_lines
from pipeline.store.journal import PASS1, Entry, open_journal
from pipeline.store.row_heads import Key
from pipeline.store.stored_record import attempts_of
from tests.fakes.toy_task import ToyTask

MODEL = ModelSpec(name="echo", path="echo")
WAIT, CHECK = CueText("Wait, no."), CueText("Please check it again.")
NEUTRAL = CueText("Once more, please.", control=True)
VOLATILE = ("attempt", "seconds")


def spec(folder: Path, cues: dict[str, CueText] | None = None, **changes: Any) -> RunSpec:
    sampling = Sampling(num_samples=changes.pop("samples", 2), **changes.pop("sampling", {}))
    run = Run(dir=str(folder), **changes)
    return RunSpec(
        task={},
        backend={},
        quantization={},
        model=MODEL,
        sampling=sampling,
        cue=cues or {},
        run=run,
    )


def point(run_spec: RunSpec, task: ToyTask | None = None, backend: Echo | None = None) -> Point:
    return prepare(run_spec, task or ToyTask(), backend or Echo(MODEL))


def go(made: Point, backend: Echo | None = None) -> Session:
    return asyncio.run(execute([made], backend or Echo(MODEL)))[0]


def rows_of(made: Point) -> list[Row]:
    return [stable(row) for _, row in read_lines(made.rows_path) if row is not None]


def stable(value: Any) -> Any:
    """A row without what differs from attempt to attempt."""
    if isinstance(value, dict):
        return {k: stable(v) for k, v in value.items() if k not in VOLATILE}
    return value


class Counting(Echo):
    """Echo that remembers what it was asked."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(MODEL, **settings)
        self.asked: list[Request] = []

    async def generate(self, request: Request) -> Generation:
        self.asked.append(request)
        return await super().generate(request)


class Dying(Counting):
    """Echo that stops the whole run after some generations, as a kill would."""

    def __init__(self, after: int) -> None:
        super().__init__(capacity=1)
        self.after = after

    async def generate(self, request: Request) -> Generation:
        if len(self.asked) >= self.after:
            raise KeyboardInterrupt
        return await super().generate(request)


def test_rows_do_not_depend_on_capacity_or_order(tmp_path: Path) -> None:
    cues = {"wait": WAIT, "neutral": NEUTRAL}
    one, many, mixed = (point(spec(tmp_path / n, cues)) for n in ("one", "many", "mixed"))
    go(one, Echo(MODEL, capacity=1))
    go(many, Echo(MODEL, capacity=50))
    shuffled = random.Random(3).sample(list(mixed.examples), len(mixed.examples))
    mixed = replace(mixed, examples=shuffled)
    go(mixed)
    by_key = sorted(rows_of(mixed), key=lambda row: (row["example_id"], row["sample_idx"]))
    assert rows_of(one) == rows_of(many) == by_key


@pytest.mark.parametrize("after", [1, 7, 20])
def test_a_run_that_died_goes_on_and_asks_only_what_is_missing(tmp_path: Path, after: int) -> None:
    cues = {"wait": WAIT}
    whole = point(spec(tmp_path / "whole", cues))
    go(whole)
    made = point(spec(tmp_path / "cut", cues))
    with pytest.raises(KeyboardInterrupt):
        go(made, Dying(after))
    counting = Counting()
    session = go(made, counting)
    assert session.status == "complete"
    assert rows_of(made) == rows_of(whole)
    assert len(counting.asked) == 6 * 2 * 2 * 2 - after
    assert not list(made.folder.glob("journal-*"))


def test_a_trace_cut_after_its_think_phase_goes_on_from_the_journal(tmp_path: Path) -> None:
    made = point(spec(tmp_path, samples=1, limit=1))
    with pytest.raises(KeyboardInterrupt):
        go(made, Dying(1))
    counting = Counting()
    go(made, counting)
    (asked,) = counting.asked
    assert asked.stop == ("</answer>",)
    assert isinstance(asked.prompt.prefill[1], Generation)


def test_running_a_finished_run_again_asks_nothing_and_changes_no_byte(tmp_path: Path) -> None:
    made = point(spec(tmp_path, {"wait": WAIT}))
    go(made)
    before = {f.name: f.read_bytes() for f in tmp_path.iterdir() if not f.name.startswith(".")}
    counting = Counting()
    assert go(made, counting).status == "complete"
    assert counting.asked == []
    after = {f.name: f.read_bytes() for f in tmp_path.iterdir() if not f.name.startswith(".")}
    assert after == before


def test_an_added_cue_more_samples_and_a_larger_limit_complete_what_is_there(
    tmp_path: Path,
) -> None:
    go(point(spec(tmp_path / "grown", {"check": CHECK}, samples=1, limit=3)))
    cues = {"wait": WAIT, "check": CHECK, "neutral": NEUTRAL}
    grown = point(spec(tmp_path / "grown", cues, samples=2, limit=5))
    counting = Counting()
    go(grown, counting)
    fresh = point(spec(tmp_path / "fresh", cues, samples=2, limit=5))
    go(fresh)
    assert rows_of(grown) == rows_of(fresh)
    assert len(counting.asked) == 3 * 2 * 2 + 7 * 4 * 2
    first = rows_of(grown)[0]
    assert [first[n]["cue"] for n in ("pass2a", "pass2b", "pass2c")] == list(cues)
    assert first["pass2"]["cue"] == "check" and "token_ids" not in first["pass2"]


def test_each_generated_token_counts_in_the_attempt_that_made_it(tmp_path: Path) -> None:
    """Attempts add up to the tokens of all passes, however often a row was written."""
    go(point(spec(tmp_path, samples=1, limit=3)))
    made = point(spec(tmp_path, {"wait": WAIT, "check": CHECK}, samples=1, limit=3))
    go(made)
    passes = [[row[name] for name in ("pass1", "pass2a", "pass2b")] for row in rows_of(made)]
    tokens = [[fields["tokens_total"] for fields in of_row] for of_row in passes]
    first, second = attempts_of(tmp_path)
    assert first["tokens"] == sum(row[0] for row in tokens) > 0
    assert second["tokens"] == sum(row[1] + row[2] for row in tokens) > 0


def test_a_cue_that_the_spec_no_longer_names_keeps_its_pass(tmp_path: Path) -> None:
    go(point(spec(tmp_path, {"check": CHECK})))
    made = point(spec(tmp_path, {"wait": WAIT}))
    go(made)
    row = rows_of(made)[0]
    assert [row[n]["cue"] for n in ("pass2a", "pass2b")] == ["wait", "check"]


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"seed": 7}, "run.seed"),
        ({"sampling": {"temperature": 0.3}}, "sampling.temperature"),
        ({"sampling": {"think_cap": 9}}, "phases.think.cap"),
    ],
)
def test_a_changed_spec_is_refused_with_the_keys_that_differ(
    tmp_path: Path, change: dict[str, Any], key: str
) -> None:
    go(point(spec(tmp_path)))
    with pytest.raises(SpecError, match=key):
        go(point(spec(tmp_path, **change)))


def test_changed_data_is_refused(tmp_path: Path) -> None:
    go(point(spec(tmp_path)))
    with pytest.raises(SpecError, match="task.data"):
        go(point(spec(tmp_path), ToyTask(count=7)))


def test_each_sample_reconsiders_its_own_pass_1_unless_one_is_shared(tmp_path: Path) -> None:
    own = point(spec(tmp_path / "own", {"wait": WAIT}, samples=3))
    go(own)
    for row in rows_of(own):
        assert row["pass2"]["prev_output"] == row["pass1"]["output"]
    changes: dict[str, Any] = {"samples": 3, "pass1_sample": 2}
    shared = point(spec(tmp_path / "shared", {"wait": WAIT}, **changes))
    go(shared, Echo(MODEL, capacity=1))
    outputs = {(r["example_id"], r["sample_idx"]): r["pass1"]["output"] for r in rows_of(shared)}
    for row in rows_of(shared):
        assert row["pass2"]["prev_output"] == outputs[row["example_id"], 2]


def test_a_shared_pass_1_survives_resume(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"samples": 3, "pass1_sample": 1}
    whole = point(spec(tmp_path / "whole", {"wait": WAIT}, **changes))
    go(whole)
    for after in (5, 11, 29):
        made = point(spec(tmp_path / f"cut{after}", {"wait": WAIT}, **changes))
        with pytest.raises(KeyboardInterrupt):
            go(made, Dying(after))
        go(made)
        assert rows_of(made) == rows_of(whole)


class FailingScore(ToyTask):
    """Cannot judge one example."""

    def score(self, example: Example, generations: Mapping[str, Generation]) -> dict[str, Any]:
        if example.id == "toy-2":
            raise ZeroDivisionError("grader broke")
        return super().score(example, generations)


def test_a_failed_trace_is_recorded_the_others_go_on_and_a_rerun_asks_nothing_again(
    tmp_path: Path,
) -> None:
    made = point(spec(tmp_path), FailingScore())
    session = go(made)
    assert session.status == "failed" and len(session.failures) == 2
    failures = [json.loads(line) for line in (tmp_path / "failures.jsonl").open()]
    assert {f["example_id"] for f in failures} == {"toy-2"}
    assert "grader broke" in failures[0]["error"]
    assert len(rows_of(made)) == 10
    counting = Counting()
    mended = point(spec(tmp_path))
    assert go(mended, counting).status == "complete"
    assert counting.asked == [] and len(rows_of(mended)) == 12


def test_more_failures_than_max_failed_end_the_run(tmp_path: Path) -> None:
    class NeverRight(ToyTask):
        def score(self, example: Example, generations: Mapping[str, Generation]) -> dict[str, Any]:
            raise ZeroDivisionError

    counting = Counting(capacity=1)
    session = go(point(spec(tmp_path, max_failed=2), NeverRight(count=8)), counting)
    assert session.status == "failed" and len(session.failures) == 3
    assert len(counting.asked) == 6


def test_points_share_a_backend_and_fail_for_themselves(tmp_path: Path) -> None:
    bad = point(spec(tmp_path / "bad"), FailingScore())
    good = point(spec(tmp_path / "good", sampling={"temperature": 0.1}))
    sessions = asyncio.run(execute([bad, good], Echo(MODEL)))
    assert [session.status for session in sessions] == ["failed", "complete"]


def test_a_stop_drops_what_is_under_way_and_the_next_run_completes(tmp_path: Path) -> None:
    whole = point(spec(tmp_path / "whole"))
    go(whole)
    made = point(spec(tmp_path / "cut"))

    async def interrupted() -> list[Session]:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(0.15, stop.set)
        slow = Echo(MODEL, capacity=2, seconds_per_token=0.0005)
        return await execute([made], slow, stop)

    assert asyncio.run(interrupted())[0].status == "interrupted"
    assert len(rows_of(made)) < 12
    assert go(made).status == "complete"
    assert rows_of(made) == rows_of(whole)


def test_a_spent_budget_ends_samples_that_wait_for_a_shared_pass_1(tmp_path: Path) -> None:
    """The shared sample is refused while the others wait for it, and none of them hangs."""

    class Dear(Echo):
        def priced(self) -> bool:
            return True

        def worst_cost(self, request: Request) -> float:
            return 0.01

        def may_have_paid(self, request: Request) -> bool:
            return False

        async def generate(self, request: Request) -> Generation:
            made = await super().generate(request)
            made.backend_columns["cost_usd"] = 0.01
            return made

    for num_affordable in (1, 2, 5, 7):
        folder = tmp_path / str(num_affordable)
        limit = 0.01 * num_affordable + 0.005
        asked = spec(folder, {"wait": WAIT}, samples=4, pass1_sample=2, budget=limit)
        made = prepare(asked, ToyTask(), Dear(MODEL))
        (session,) = asyncio.run(asyncio.wait_for(execute([made], Dear(MODEL)), 30))
        assert session.status == "interrupted" and session.budget.exhausted
        assert session.budget.spent == pytest.approx(0.01 * num_affordable)


def test_attempts_are_counted_and_name_their_rows(tmp_path: Path) -> None:
    made = point(spec(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        go(made, Dying(10))
    go(made)
    record = json.loads((tmp_path / "run.json").read_text())
    assert [a["status"] for a in record["attempts"]] == ["interrupted", "complete"]
    rows = [row for _, row in read_lines(made.rows_path) if row is not None]
    for attempt in record["attempts"]:
        mine = [row for row in rows if row["attempt"] == attempt["attempt"]]
        assert len(mine) == attempt["rows"]
        assert sum(row["pass1"]["tokens_total"] for row in mine) == attempt["tokens"]
    assert record["attempts"][1]["versions"]["hydra-core"].startswith("1.3")


def test_entropy_none_keeps_counts_and_drops_numbers(tmp_path: Path) -> None:
    full, none = (point(spec(tmp_path / mode, entropy=mode)) for mode in ("full", "none"))
    go(full)
    go(none)
    for with_it, without in zip(rows_of(full), rows_of(none), strict=True):
        assert without["pass1"]["entropy"] is None and "entropies" not in without["pass1"]
        assert without["pass1"]["tokens_think"] == with_it["pass1"]["tokens_think"] > 0


def test_a_journal_survives_a_torn_line(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, set(), "first")
    entry = Entry(Key("a", 0), PASS1, "think")
    journal.put(entry, Generation([1, 2], "ab", "stop_token", tail="</think>"))
    journal.close(everything_finished=False)
    with journal.path.open("ab") as file:
        file.write(b'{"example_id": "a", "sam')
    shutil.copy(journal.path, tmp_path / "journal-elsewhere-1.jsonl")
    again = open_journal(tmp_path, set(), "second")
    found = again.get(entry)
    assert found is not None and replace(found) == Generation(
        [1, 2], "ab", "stop_token", tail="</think>"
    )
    assert [p.name for p in tmp_path.glob("journal-*")] == [again.path.name]
    again.close(everything_finished=True)


@pytest.mark.parametrize("text", ["", '{"finger', "[]", "{}", "5", '{"fingerprint": "x"}'])
def test_a_torn_run_record_ends_in_a_sentence_and_may_be_moved_away(
    tmp_path: Path, text: str
) -> None:
    made = point(spec(tmp_path))
    go(made)
    before = rows_of(made)
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(SpecError, match="run.json is no record of a run"):
        go(made)
    (tmp_path / "run.json").unlink()
    assert go(made).status == "complete" and rows_of(made) == before


@pytest.mark.parametrize(
    "old",
    [
        {"text": "old"},
        {"pass": "pass1", "phase": "think", "generation": None},
        {"pass": "pass1", "phase": "think", "generation": {"text": "x", "unknown": 1}},
    ],
)
def test_a_journal_of_another_format_is_named_and_not_deleted(
    tmp_path: Path, old: dict[str, Any]
) -> None:
    path = tmp_path / "journal-old.jsonl"
    path.write_text(json.dumps({"example_id": "toy-1", "sample_idx": 0} | old) + "\n")
    kept = path.read_bytes()
    with pytest.raises(StoreError, match="journal-old.jsonl: the line at byte 0"):
        go(point(spec(tmp_path)))
    assert path.read_bytes() == kept


@pytest.mark.parametrize("spoilt", ["pass1", "pass2a", "cue_hash"])
def test_a_stored_row_with_a_part_missing_is_named_and_kept(tmp_path: Path, spoilt: str) -> None:
    made = point(spec(tmp_path, {"wait": WAIT, "check": CHECK}))
    go(made)
    first, *others = (json.loads(line) for line in made.rows_path.open())
    if spoilt == "cue_hash":
        del first["pass2a"]["cue_hash"]
    else:
        first[spoilt] = None
    lines = [json.dumps(row) + "\n" for row in (first, *others)]
    made.rows_path.write_text("".join(lines))
    with pytest.raises(StoreError, match=f"{first['example_id']}, sample 0 has no whole pass"):
        go(made)
    assert made.rows_path.read_text() == "".join(lines)


def test_rows_removed_under_a_run_stop_it_and_come_back_from_the_journal(tmp_path: Path) -> None:
    made = point(spec(tmp_path, {"wait": WAIT}))
    backend = Counting(capacity=1)

    def remove(session: Session, row: Row | None) -> None:
        made.rows_path.unlink(missing_ok=True)

    with pytest.raises(StoreError, match="was removed while it was written to"):
        asyncio.run(execute([made], backend, None, remove))
    asked = len(backend.asked)
    assert asked < 48
    assert go(made, again := Counting()).status == "complete"
    assert len(again.asked) == 48 - asked


def test_a_folder_removed_under_a_run_is_what_the_error_says(tmp_path: Path) -> None:
    made = point(spec(tmp_path / "gone"))

    def remove(session: Session, row: Row | None) -> None:
        shutil.rmtree(made.folder)

    with pytest.raises(StoreError, match="was removed while it was written to"):
        asyncio.run(execute([made], Echo(MODEL, capacity=1), None, remove))
