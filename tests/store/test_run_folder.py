"""A run folder is one writer's and one spec's, whoever is paused, killed or late, and where."""

import asyncio
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.protocols import Generation, Request
from pipeline.run.executor import execute
from pipeline.run.point import Point
from pipeline.run.session import Session, open_now, open_session
from pipeline.spec import CueText, SpecError
from pipeline.store import rows as rows_module
from pipeline.store.claims import Claims
from pipeline.store.files import StoreError, encode, read_lines, write_atomically
from pipeline.store.journal import Journal
from pipeline.store.leases import Leases
from pipeline.store.row_index import parts_of
from pipeline.store.rows import Rows
from pipeline.store.run_folder import RunFolder
from pipeline.store.run_record import RunRecord
from pipeline.store.stored_record import attempts_of
from tests.fakes.toy_task import ToyTask
from tests.run.test_executor import Counting, go, point, rows_of, spec

CUES = {"wait": CueText("Wait, no.")}


def small(folder: Path, samples: int = 2, shards: int = 1, **changes: Any) -> Point:
    """Rows are written out of order, the shared pass 1 first, so that the end has work to do."""
    given = {"pass1_sample": 1, "lease_seconds": 0.3, "wait": True} | changes
    return point(spec(folder, CUES, samples=samples, shards=shards, **given), ToyTask(4))


def pauses_before(owner: Any, name: str, when: Callable[..., bool] = lambda *_: True) -> None:
    """This process stops itself, once, before the function runs."""
    function, paused = getattr(owner, name), []

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not paused and when(*args):
            paused.append(1)
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(0.1)  # another thread may take the signal, and this one run on meanwhile
        return function(*args, **kwargs)

    setattr(owner, name, wrapped)


def is_rows(_: Any, path: Any) -> bool:
    return str(path).endswith("step0000_test.jsonl")


def is_record(_: Any, path: Any) -> bool:
    return str(path).endswith("run.json")


def is_lease(_: Any, path: Any) -> bool:
    return Path(path).parent.name == ".leases"


def paused(made: Point, owner: Any, name: str, when: Callable[..., bool]) -> int:
    """A child that runs a point and has stopped itself before the function."""
    if (child := os.fork()) == 0:
        status = 3
        try:
            pauses_before(owner, name, when)
            go(made)
            status = 0
        except SpecError:
            status = 2
        except StoreError as error:
            print(error, file=sys.stderr)
            status = 2 if "another process has taken" in str(error) else 4
        finally:
            os._exit(status)
    _, state = os.waitpid(child, os.WUNTRACED)
    assert os.WIFSTOPPED(state), "it never came to the line"
    return child


def goes_on(child: int) -> int:
    """The exit status of a paused child that wakes up."""
    os.kill(child, signal.SIGCONT)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


ALWAYS: Callable[..., bool] = lambda *_: True  # noqa: E731
LINES: dict[str, tuple[Any, str, Callable[..., bool]]] = {
    "before its record starts": (RunRecord, "start", ALWAYS),
    "while its journal opens": (Journal, "learn", ALWAYS),
    "before a row, after the look at the lease": (Rows, "append", ALWAYS),
    "before it closes": (RunFolder, "close", ALWAYS),
    "before it ends its record": (RunRecord, "close", ALWAYS),
    "before it settles its rows": (Rows, "settle", ALWAYS),
    "while it reads the rows that it settles": (Rows, "_line_of", ALWAYS),
    "right before the rows are replaced": (os, "replace", is_rows),
    "right before the record is replaced": (os, "replace", is_record),
}


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("samples", [2, 3])
def test_a_writer_paused_at_any_line_and_taken_over_changes_nothing_when_it_wakes(
    tmp_path: Path, line: str, samples: int
) -> None:
    child = paused(small(tmp_path), *LINES[line])
    second = small(tmp_path, samples)
    assert go(second).status == "complete"
    rows, attempts = second.rows_path.read_bytes(), attempts_of(tmp_path)
    assert goes_on(child) == 2
    assert second.rows_path.read_bytes() == rows
    assert attempts_of(tmp_path) == attempts and attempts[-1]["status"] == "complete"
    assert len(rows_of(second)) == 4 * samples
    assert not list(tmp_path.glob(".*.tmp"))


MERGING: dict[str, tuple[Any, str, Callable[..., bool]]] = {
    "before it writes what it has read": (rows_module, "write_atomically", ALWAYS),
    "right before the rows are replaced": (os, "replace", is_rows),
    "before it writes the record of all": (RunRecord, "fold", ALWAYS),
    "right before the record is replaced": (os, "replace", is_record),
}


@pytest.mark.parametrize("line", MERGING)
@pytest.mark.parametrize("shards", [1, 2])
def test_a_shard_paused_while_it_merges_leaves_what_another_made_of_more_rows(
    tmp_path: Path, line: str, shards: int
) -> None:
    child = paused(small(tmp_path, shards=2, limit=2), *MERGING[line])
    second = small(tmp_path, shards=shards)
    assert go(second).status == "complete"
    rows, attempts = second.rows_path.read_bytes(), attempts_of(tmp_path)
    assert goes_on(child) == 2
    assert second.rows_path.read_bytes() == rows and len(rows_of(second)) == 8
    assert attempts_of(tmp_path) == attempts
    assert not list(tmp_path.rglob(".*.tmp"))


@pytest.mark.parametrize(
    ("line", "shards", "ends_with"),
    [
        ("merge_done", 1, 0),
        ("merge_done", 2, 0),
        ("try_merge_lease", 1, 2),
        ("try_merge_lease", 2, 0),
    ],
)
def test_a_shard_that_wakes_while_it_merges_disturbs_nobody_at_work(
    tmp_path: Path, line: str, shards: int, ends_with: int
) -> None:
    child = paused(small(tmp_path, shards=2, limit=2), Claims, line, ALWAYS)
    seen_from_elsewhere(tmp_path)

    class Waking(Counting):
        async def generate(self, request: Request) -> Generation:
            if len(self.asked) == 3:
                status.append(goes_on(child))
            return await super().generate(request)

    status: list[int] = []
    backend = Waking(capacity=1)
    assert go(small(tmp_path, shards=shards), backend).status == "complete"
    assert status == [ends_with]
    assert len(backend.asked) == len({request.seed for request in backend.asked}) == 16


def seen_from_elsewhere(folder: Path) -> None:
    """Everybody's heart seems to beat, or not, on a machine whose processes cannot be seen."""
    for beat in (folder / ".leases").glob("*.beat"):
        beat.write_text(beat.read_text().replace('"boot"', '"elsewhere"'))


def test_a_shard_that_was_taken_for_dead_ends_where_another_is_alone_at_work(
    tmp_path: Path,
) -> None:
    child = paused(small(tmp_path, shards=2), Journal, "put", ALWAYS)
    single = open_now_when_it_can_be_had(small(tmp_path))
    assert goes_on(child) == 2
    counting = Counting()
    while (trace := asyncio.run(single.next_trace())) is not None:
        asyncio.run(single.run_trace(*trace, 0, counting))
    single.close({})
    assert single.status == "complete" and len(counting.asked) == 8 * 4


def open_now_when_it_can_be_had(made: Point) -> Session:
    session = asyncio.run(open_session(made, asyncio.Event()))
    assert session is not None
    return session


@pytest.mark.parametrize("shards", [1, 2])
def test_of_two_specs_at_once_in_one_folder_the_later_one_is_refused(
    tmp_path: Path, shards: int
) -> None:
    """The child has looked for another spec, found none, and waits to take the lease."""
    other = small(tmp_path, shards=shards, sampling={"temperature": 0.1})
    child = paused(other, Leases, "enter", ALWAYS)
    made = small(tmp_path, shards=shards)
    assert go(made).status == "complete"
    rows = made.rows_path.read_bytes()
    assert goes_on(child) == 2
    assert made.rows_path.read_bytes() == rows and not parts_of(made.rows_path)


def test_rows_of_another_spec_never_count_even_where_run_json_was_moved_away(
    tmp_path: Path,
) -> None:
    made = small(tmp_path)
    go(made)
    rows = made.rows_path.read_bytes()
    (tmp_path / "run.json").unlink()
    with pytest.raises(StoreError, match="another spec than this one"):
        go(small(tmp_path, samples=3, sampling={"temperature": 0.1}))
    assert made.rows_path.read_bytes() == rows
    assert go(small(tmp_path)).status == "complete", "the spec that they are of goes on"


def test_a_row_whose_fingerprint_was_edited_is_named_with_its_place(tmp_path: Path) -> None:
    made = small(tmp_path)
    go(made)
    lines = made.rows_path.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(made.fingerprint.encode(), b"0" * 64)
    made.rows_path.write_bytes(b"".join(lines))
    with pytest.raises(StoreError, match=f"line at byte {len(lines[0])} .toy-0, sample 1"):
        go(made)


def test_attempt_numbers_go_on_from_the_rows_where_run_json_was_moved_away(tmp_path: Path) -> None:
    go(small(tmp_path))
    (tmp_path / "run.json").unlink()
    more = small(tmp_path, samples=3)
    go(more)
    assert [attempt["attempt"] for attempt in attempts_of(tmp_path)] == [2]
    assert {row["attempt"] for _, row in read_lines(more.rows_path) if row} == {1, 2}


def killed(made: Point, owner: Any, name: str, when: Callable[..., bool] = lambda *_: True) -> None:
    """Run a point in a child that is killed before the function."""
    child = paused(made, owner, name, when)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_point_killed_after_its_last_row_is_complete_after_a_rerun(tmp_path: Path) -> None:
    made = small(tmp_path)
    killed(made, RunFolder, "close")
    assert attempts_of(tmp_path)[0]["status"] == "running"
    counting = Counting()
    assert go(made, counting).status == "complete" and not counting.asked
    first, second = attempts_of(tmp_path)
    assert (first["status"], second["status"], second["rows"]) == ("killed", "complete", 0)
    tokens = sum(
        row["pass1"]["tokens_total"] + row["pass2"]["tokens_total"]
        for _, row in read_lines(made.rows_path)
        if row
    )
    assert (first["rows"], first["tokens"]) == (8, tokens)
    record = (tmp_path / "run.json").read_bytes()
    go(made)
    assert (tmp_path / "run.json").read_bytes() == record


def test_a_killed_attempt_that_added_a_cue_counts_its_own_tokens(tmp_path: Path) -> None:
    go(point(spec(tmp_path, samples=1), ToyTask(4)))
    made = point(spec(tmp_path, CUES, samples=1, lease_seconds=0.3, wait=True), ToyTask(4))
    killed(made, RunFolder, "close")
    go(made)
    rows = [row for _, row in read_lines(made.rows_path) if row]
    firsts, laters = ([row[name]["tokens_total"] for row in rows] for name in ("pass1", "pass2"))
    attempts = attempts_of(tmp_path)
    assert [attempt["status"] for attempt in attempts] == ["complete", "killed", "complete"]
    assert [attempt["tokens"] for attempt in attempts] == [sum(firsts), sum(laters), 0]


@pytest.mark.parametrize("when", [is_rows, is_record, is_lease])
def test_what_killed_writers_left_half_written_is_removed(
    tmp_path: Path, when: Callable[..., bool]
) -> None:
    made = small(tmp_path)
    killed(made, os, "replace", when)
    assert list(tmp_path.rglob(".*.tmp"))
    assert go(made).status == "complete"
    assert not list(tmp_path.rglob(".*.tmp"))


def test_rows_cut_off_from_outside_are_noticed_and_made_again(tmp_path: Path) -> None:
    made = small(tmp_path)
    backend = Counting(capacity=1)

    def cut(session: Session, row: Any) -> None:
        if len(backend.asked) > 12:
            os.truncate(made.rows_path, 100)

    (session,) = asyncio.run(execute([made], backend, None, cut))
    assert session.status == "interrupted"
    assert go(made).status == "complete"
    assert len(rows_of(made)) == 8 and all(rows_of(made))


def test_a_row_changed_from_outside_stops_the_end_and_nothing_is_replaced(tmp_path: Path) -> None:
    made = small(tmp_path)
    session = open_now(made)
    while (trace := asyncio.run(session.next_trace())) is not None:
        asyncio.run(session.run_trace(*trace, 0, Counting()))
    content = made.rows_path.read_bytes()
    changed = content.replace(b'"example_id":"toy-3"', b'"example_id":"toy-9"')
    with made.rows_path.open("rb+") as file:
        file.write(changed)
    with pytest.raises(StoreError, match="is no longer the row of toy-3, sample"):
        session.close({})
    assert made.rows_path.read_bytes() == changed


def test_parts_that_are_merged_while_a_shard_looks_at_them_are_read_where_they_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = small(tmp_path, shards=2)
    late = open_now(made)
    early = open_now(small(tmp_path, shards=2))
    trace = asyncio.run(early.next_trace())
    assert trace is not None
    asyncio.run(early.run_trace(*trace, 0, Counting()))
    (part,) = [p for p in parts_of(made.rows_path) if p.stat().st_size]
    before = parts_of(made.rows_path)

    def listed(path: Path) -> list[Path]:  # the part is listed, then merged by another
        if part.exists():
            write_atomically(path, [part.read_bytes()])
            part.unlink()
        return before

    monkeypatch.setattr("pipeline.store.rows.parts_of", listed)
    late.folder.rows.refresh()
    monkeypatch.undo()
    late.folder.journal.learn(set())
    assert len(late.folder.rows.complete) == 1
    late.close({})
    with pytest.raises(StoreError):
        early.folder.rows.append({"example_id": "x", "sample_idx": 0})
    early.folder.rows.close()
    early.folder.claims.close()


def test_shards_that_fence_off_a_dead_single_writer_refuse_none_of_each_other(
    tmp_path: Path,
) -> None:
    killed(small(tmp_path), Rows, "append")
    first, second = (Leases(tmp_path, 60) for _ in range(2))
    for leases in (first, second):
        leases.enter()
    first.fence_off("all")
    assert second.state("all") == "free", "nobody is seen to hold it meanwhile"
    second.fence_off("all")
    for leases in (first, second):
        leases.close()


def test_who_waits_says_for_whom(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    child = paused(small(tmp_path), Rows, "append", ALWAYS)
    assert go(small(tmp_path)).status == "complete"
    assert f"waiting for process {child} on" in caplog.text
    assert goes_on(child) == 2


def test_rows_judged_by_other_settings_are_said_aloud_and_tell_which(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = (spec(tmp_path, limit=limit) for limit in (2, 4))
    first.task, second.task = {"grader": "contains"}, {"grader": "exact"}
    go(point(first))
    assert "judged by other settings" not in caplog.text
    made = point(second)
    go(made)
    assert "4 rows were judged by other settings of the task" in caplog.text
    graders = [row["grader"] for row in rows_of(made)]
    assert graders[:4] == [point(first).grader] * 4 and graders[4:] == [made.grader] * 4
    assert json.loads((tmp_path / "run.json").read_text())["grader"] == made.grader
    second.task = {"grader": "exact", "data": {"path": "moved.jsonl"}}
    assert point(second).grader == made.grader, "where the data lies says nothing of grading"


def test_only_rows_of_this_slice_are_counted(tmp_path: Path) -> None:
    go(point(spec(tmp_path, limit=5)))
    session = go(point(spec(tmp_path, limit=2)))
    assert session.folder.num_complete == 4 and len(session.folder.rows.lines) == 10


def test_a_deeply_nested_line_is_set_aside_in_rows_and_passed_over_in_a_journal(
    tmp_path: Path,
) -> None:
    made = small(tmp_path)
    go(made)
    deep = b"[" * 200_000 + b"\n"
    made.rows_path.write_bytes(made.rows_path.read_bytes() + deep + encode({"deep": 1}))
    (tmp_path / "journal-old.jsonl").write_bytes(deep)
    assert go(small(tmp_path, samples=3)).status == "complete"
    assert len(rows_of(made)) == 12


class Slow(Counting):
    """Answers after a signal has come."""

    def __init__(self, stop: asyncio.Event, paid: bool) -> None:
        super().__init__(capacity=4)
        self.stop = stop
        self.capabilities = type(self.capabilities)(
            **{name: getattr(self.capabilities, name) for name in ("assistant_prefill", "entropy")},
            paid=paid,
        )

    async def generate(self, request: Request) -> Generation:
        made = await super().generate(request)
        if len(self.asked) >= 4:
            self.stop.set()
        await self.stop.wait()
        await asyncio.sleep(0.05)
        return made


@pytest.mark.parametrize(("paid", "grace", "num_kept"), [(True, None, 4), (False, None, 0)])
def test_answers_under_way_that_are_paid_for_are_waited_for_and_asked_only_once(
    tmp_path: Path, paid: bool, grace: float | None, num_kept: int
) -> None:
    made = point(spec(tmp_path, grace_seconds=grace))

    async def stopped() -> Slow:
        backend = Slow(stop := asyncio.Event(), paid)
        await execute([made], backend, stop)
        return backend

    asked = asyncio.run(stopped()).asked
    assert len(asked) == 4, "no request follows the signal"
    assert len(attempts_of(tmp_path)) == 1 and attempts_of(tmp_path)[0]["status"] == "interrupted"
    counting = Counting()
    assert go(made, counting).status == "complete"
    assert len(counting.asked) == 24 - num_kept


def test_a_second_signal_drops_what_the_first_waits_for(tmp_path: Path) -> None:
    made = point(spec(tmp_path, grace_seconds=60))

    class Never(Slow):
        async def generate(self, request: Request) -> Generation:
            await super().generate(request)
            return await asyncio.Future()

    async def stopped() -> None:
        stop, drop = asyncio.Event(), asyncio.Event()
        asyncio.get_running_loop().call_later(0.4, drop.set)
        await asyncio.wait_for(execute([made], Never(stop, True), stop, drop=drop), 30)

    asyncio.run(stopped())
    assert go(made).status == "complete"


def test_a_stopped_run_whose_samples_wait_for_a_shared_pass_1_ends(tmp_path: Path) -> None:
    made = small(tmp_path, samples=3, grace_seconds=30)

    async def stopped() -> None:
        stop = asyncio.Event()
        await asyncio.wait_for(execute([made], Slow(stop, True), stop), 20)

    asyncio.run(stopped())
    assert go(made).status == "complete"


def test_files_are_read_and_settled_in_threads_and_never_on_the_event_loop(tmp_path: Path) -> None:
    made = small(tmp_path)
    threads: set[str] = set()

    def watch(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            threads.add(threading.current_thread().name)
            return function(*args, **kwargs)

        setattr(owner, name, wrapped)

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((Rows, "refresh"), (Rows, "settle"), (Journal, "learn")):
            patch.setattr(owner, name, getattr(owner, name))
            watch(owner, name)
        go(made)
    assert threads and "MainThread" not in threads
