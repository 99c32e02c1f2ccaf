"""Several writers share the rows of one point, die, and are taken up; one file comes out."""

import asyncio
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.protocols import Example, Generation, Request
from pipeline.run.executor import execute
from pipeline.run.point import Point
from pipeline.run.session import Session, open_now
from pipeline.spec import CueText
from pipeline.store.claims import CHUNK, MERGE, chunk_of
from pipeline.store.files import StoreError, read_lines
from pipeline.store.leases import Leases
from pipeline.store.row_heads import Key
from pipeline.store.row_index import parts_of, read_rows
from pipeline.store.stored_record import attempts_of
from tests.fakes.configs import ROOT
from tests.fakes.toy_task import ToyTask
from tests.run.test_executor import Counting, go, point, rows_of, spec
from tests.test_run import command, rows_in, run, wait_for_rows

CUES = {"wait": CueText("Wait, no.")}
LINE = ("task=crossword", "backend=echo", "cue=wait", "sampling.num_samples=2")
SLOW = ("backend.seconds_per_token=0.001", "backend.capacity=4")


def shard(folder: Path, shards: int = 2, **changes: Any) -> Point:
    changes = {"shards": shards, "lease_seconds": 0.5} | changes
    return point(spec(folder, CUES, **changes), ToyTask(24))


class Meeting(Counting):
    """Echo that goes on only when both writers have asked for something."""

    def __init__(self, barrier: asyncio.Barrier) -> None:
        super().__init__(capacity=4)
        self.barrier = barrier

    async def generate(self, request: Request) -> Generation:
        if not self.asked:
            self.asked.append(request)
            await self.barrier.wait()
        return await super().generate(request)


def test_shards_at_once_share_the_work_and_leave_what_one_writer_leaves(tmp_path: Path) -> None:
    whole = point(spec(tmp_path / "whole", CUES), ToyTask(24))
    go(whole)

    async def together() -> tuple[list[Session], list[Meeting]]:
        barrier = asyncio.Barrier(2)
        backends = [Meeting(barrier), Meeting(barrier)]
        made = [execute([shard(tmp_path / "shared")], backend) for backend in backends]
        return [session for (session,) in await asyncio.gather(*made)], backends

    sessions, backends = asyncio.run(together())
    made = shard(tmp_path / "shared")
    assert rows_of(made) == rows_of(whole)
    assert {session.status for session in sessions} <= {"complete", "shared"}
    asked = Counter(request.seed for b in backends for request in b.asked[1:])
    assert set(asked.values()) == {1}, "no generation was made twice"
    assert all(len(backend.asked) > 20 for backend in backends)
    names = {path.name for path in made.folder.iterdir() if not path.name.startswith(".")}
    assert names == {"run.json", "step0000_test.jsonl"}
    assert [a["attempt"] for a in attempts_of(made.folder)] == [1, 2]
    assert sum(a["rows"] for a in attempts_of(made.folder)) == 48


def test_readers_merge_parts_by_key_before_anybody_has(tmp_path: Path) -> None:
    made = shard(tmp_path)
    session = open_now(made)
    example, sample = asyncio.run(session.next_trace())
    asyncio.run(session.run_trace(example, sample, 0, Counting()))
    (part,) = parts_of(made.rows_path)
    doubled = made.rows_path.with_name(part.name.replace("part-", "part-another-"))
    doubled.write_bytes(part.read_bytes())
    assert [row["example_id"] for row in read_rows(made.rows_path)] == [example.id]
    session.close({})


@pytest.mark.parametrize("after", [1, 9, 30])
def test_a_shard_that_died_is_taken_up_with_what_its_journal_holds(
    tmp_path: Path, after: int
) -> None:
    whole = point(spec(tmp_path / "whole", CUES), ToyTask(24))
    go(whole)

    class Dying(Counting):
        async def generate(self, request: Request) -> Generation:
            if len(self.asked) >= after:
                os.kill(os.getpid(), signal.SIGKILL)
            return await super().generate(request)

    if (child := os.fork()) == 0:
        go(shard(tmp_path / "cut"), Dying(capacity=1))
        os._exit(0)
    os.waitpid(child, 0)
    counting = Counting()
    session = go(shard(tmp_path / "cut", shards=5), counting)
    assert session.status == "complete"
    assert rows_of(shard(tmp_path / "cut")) == rows_of(whole)
    assert len(counting.asked) == 24 * 2 * 2 * 2 - after
    attempts = attempts_of(tmp_path / "cut")
    assert [attempt["status"] for attempt in attempts] == ["killed", "complete"]
    assert sum(attempt["rows"] for attempt in attempts) == 48, "killed before it saved its count"


def test_who_lost_its_lease_writes_no_row_of_it(tmp_path: Path) -> None:
    made = shard(tmp_path)
    session = open_now(made)
    example, sample = asyncio.run(session.next_trace())
    folder, name = made.folder / ".leases", chunk_of(example.id)
    (folder / f"{name}.2").write_text(json.dumps({"writer": "another-1-ab", "state": "held"}))
    row = asyncio.run(session.run_trace(example, sample, 0, Counting()))
    assert row is None and not list(read_rows(made.rows_path))
    session.close({})


def test_a_single_writer_that_was_taken_over_ends_and_changes_nothing(tmp_path: Path) -> None:
    made = point(spec(tmp_path, CUES))
    session = open_now(made)
    (made.folder / ".leases/all.2").write_text(
        json.dumps({"writer": "another-1-ab", "state": "held"})
    )
    record = (made.folder / "run.json").read_bytes()
    example, sample = asyncio.run(session.next_trace())
    with pytest.raises(Exception, match="taken .* over"):
        asyncio.run(session.run_trace(example, sample, 0, Counting()))
    with pytest.raises(StoreError, match="taken .* over"):
        session.close({})
    assert not made.rows_path.read_bytes() and (made.folder / "run.json").read_bytes() == record


def test_rows_that_a_dead_writer_still_appends_do_not_reach_the_new_file(tmp_path: Path) -> None:
    made = point(spec(tmp_path, CUES, lease_seconds=0.2))
    dead = open_now(made)
    example, sample = asyncio.run(dead.next_trace())
    asyncio.run(dead.run_trace(example, sample, 0, Counting()))
    beat = next((made.folder / ".leases").glob("*.beat"))
    dead.folder.claims.leases._stop.set()
    beat.write_text(beat.read_text().replace("boot", "bo_ot"))
    session = go(made)
    with pytest.raises(StoreError, match="another process has taken .* over"):
        dead.folder.rows.append({"example_id": "late", "sample_idx": 0})
    assert session.status == "complete"
    assert all(row and row["example_id"] != "late" for _, row in read_lines(made.rows_path))


def test_a_finished_point_with_a_new_cue_is_shared_out_and_merged_again(tmp_path: Path) -> None:
    go(point(spec(tmp_path), ToyTask(24)))
    session = go(shard(tmp_path))
    assert session.status == "complete" and all(row["pass2"] for row in rows_of(session.point))
    assert len(rows_of(session.point)) == 48


def test_a_shard_that_was_asked_for_more_goes_on_when_another_is_done(tmp_path: Path) -> None:
    """The other may not merge while chunks are held, since merging removes parts and journals."""
    session, mine, others = (
        open_now(shard(tmp_path, samples=3, lease_seconds=60)),
        Counting(),
        Counting(),
    )
    example, sample = asyncio.run(session.next_trace())
    asyncio.run(session.run_trace(example, sample, 0, mine))
    _, second = asyncio.run(session.next_trace())
    asyncio.run(session.run_trace(example, second, 1, mine))
    assert go(shard(tmp_path, lease_seconds=60), others).status == "complete"
    assert parts_of(session.point.rows_path), "the rows of who is under way stay where they are"
    while (trace := asyncio.run(session.next_trace())) is not None:
        asyncio.run(session.run_trace(*trace, 0, mine))
    session.close({})
    assert session.status == "complete" and len(rows_of(session.point)) == 24 * 3
    asked = Counter(request.seed for request in (*mine.asked, *others.asked))
    assert set(asked.values()) == {1} and len(asked) == 24 * 3 * 4
    assert not parts_of(session.point.rows_path)
    assert [attempt["status"] for attempt in attempts_of(tmp_path)] == ["complete", "complete"]


def test_a_shard_between_two_chunks_goes_on_after_another_merged(tmp_path: Path) -> None:
    session, mine, others = (
        open_now(shard(tmp_path, samples=3, lease_seconds=60)),
        Counting(),
        Counting(),
    )
    for number in range(3):
        asyncio.run(session.run_trace(*asyncio.run(session.next_trace()), number, mine))
    assert go(shard(tmp_path, lease_seconds=60), others).status == "complete"
    assert not parts_of(session.point.rows_path), "it held no chunk"
    while (trace := asyncio.run(session.next_trace())) is not None:
        asyncio.run(session.run_trace(*trace, 0, mine))
    session.close({})
    assert session.status == "complete" and len(rows_of(session.point)) == 24 * 3
    asked = Counter(request.seed for request in (*mine.asked, *others.asked))
    assert set(asked.values()) == {1} and len(asked) == 24 * 3 * 4


def test_what_a_shard_with_less_to_do_gives_back_is_taken_by_one_with_more(tmp_path: Path) -> None:
    smaller, backend = open_now(shard(tmp_path)), Counting()
    example, sample = asyncio.run(smaller.next_trace())

    class GivingBack(Counting):
        async def generate(self, request: Request) -> Generation:
            if len(self.asked) == 270 and not backend.asked:
                await smaller.run_trace(example, sample, 0, backend)
                await smaller.run_trace(example, 1 - sample, 0, backend)
            return await super().generate(request)

    larger = GivingBack(capacity=8)
    assert go(shard(tmp_path, samples=3, lease_seconds=5), larger).status == "complete"
    smaller.close({})
    asked = [request.seed for request in (*backend.asked, *larger.asked)]
    assert len(asked) == len(set(asked)) == 24 * 3 * 4


def test_a_shard_that_died_elsewhere_is_taken_up_by_one_that_was_busy_meanwhile(
    tmp_path: Path,
) -> None:
    dead = open_now(shard(tmp_path))
    example, _ = asyncio.run(dead.next_trace())
    leases = dead.folder.claims.leases
    leases._stop.set()
    leases._thread.join()
    beat = leases.folder / f"{leases.writer}.beat"
    beat.write_text(beat.read_text().replace('"boot"', '"elsewhere"'))
    busy = open_now(shard(tmp_path, lease_seconds=60))
    while (trace := asyncio.run(busy.next_trace())) is not None:
        assert trace[0].id != example.id, "nobody knows yet whether it lives"
        asyncio.run(busy.run_trace(*trace, 0, Counting()))
    busy.folder.claims.leases.seconds = 0.0  # as long as a lease went by with traces of its own
    assert asyncio.run(busy.may_get_more())
    assert asyncio.run(busy.next_trace())[0].id == example.id
    busy.close({})


def test_no_chunk_is_taken_while_another_shard_merges(tmp_path: Path) -> None:
    session, merging = open_now(shard(tmp_path, lease_seconds=60)), Leases(tmp_path, 60)
    merging.enter()
    lease = merging.take(MERGE)
    with ThreadPoolExecutor(1) as thread:
        claimed = thread.submit(session.folder.claim)
        time.sleep(0.3)
        assert not claimed.done()
        merging.clear(CHUNK)  # what a merge ends with
        merging.give_back(lease)
        (example, sample), *_ = claimed.result()
    assert session.folder.claims.held(Key(example.id, sample))
    session.close({})
    merging.close()


def start(folder: Path, index: int, shards: int) -> "subprocess.Popen[bytes]":
    line = [*LINE, *SLOW, f"run.root={folder}", f"run.shards={shards}", f"run.shard={index}"]
    return subprocess.Popen(
        command(*line), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def test_shards_killed_or_stopped_are_finished_by_another_number_of_them(tmp_path: Path) -> None:
    run(*LINE, f"run.root={tmp_path / 'whole'}")
    draw = random.Random(5)
    shards = [start(tmp_path / "cut", index, 4) for index in range(4)]
    wait_for_rows(tmp_path / "cut", 1)
    for process in shards:
        process.send_signal(draw.choice([signal.SIGKILL, signal.SIGTERM]))
    for process in shards:
        process.wait(timeout=60)
    assert 0 < len(list(read_rows(next((tmp_path / "cut").rglob("run.json")).parent / NAME))) < 48
    rest = [start(tmp_path / "cut", index, 3) for index in range(3)]
    assert [process.wait(timeout=120) for process in rest] == [0, 0, 0]
    assert rows_in(tmp_path / "cut") == rows_in(tmp_path / "whole")


NAME = "step0000_test.jsonl"


def test_expected_length_decides_which_chunk_is_taken_first(tmp_path: Path) -> None:
    made = shard(tmp_path)
    long = Example("long", "say " + "word " * 500, "x")
    made = replace(made, examples=[*made.examples, long])
    session = open_now(made)
    assert asyncio.run(session.next_trace())[0].id == "long"
    session.close({})


def test_an_id_is_hashed_a_few_times_a_row_however_many_chunks_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []

    def counted(example_id: str) -> str:
        hashed.append(example_id)
        return chunk_of(example_id)

    monkeypatch.setattr("pipeline.store.claims.chunk_of", counted)
    assert go(shard(tmp_path)).status == "complete"
    assert len(hashed) <= 5 * 48


def test_leases_of_a_finished_point_are_gone(tmp_path: Path) -> None:
    session = go(shard(tmp_path))
    assert session.status == "complete"
    leases = Leases(tmp_path, 1)
    assert not list(leases.folder.glob("chunk-*")) and not list(leases.folder.glob("*.beat"))


@pytest.mark.parametrize("more", ["samples", "a cue"])
def test_a_shard_that_is_asked_for_more_waits_for_a_chunk_of_one_with_less(
    more: str, tmp_path: Path
) -> None:
    cues = CUES if more == "samples" else {}
    less = point(spec(tmp_path, cues, shards=2, lease_seconds=1), ToyTask(24))
    smaller, backend = open_now(less), Counting()
    traces = [asyncio.run(smaller.next_trace()) for _ in range(2)]

    def end() -> None:
        for trace in traces:
            asyncio.run(smaller.run_trace(*trace, 0, backend))

    later = threading.Timer(2.0, end)
    later.start()
    samples = 3 if more == "samples" else 2
    larger = go(shard(tmp_path, samples=samples, lease_seconds=1), Counting())
    later.join()
    smaller.close({})
    assert larger.status == "complete"
    rows = rows_of(larger.point)
    assert len(rows) == 24 * samples and all("pass2" in row for row in rows)


def test_a_shard_leaves_a_chunk_to_one_that_is_asked_for_as_much_in_another_order(
    tmp_path: Path,
) -> None:
    first = open_now(shard(tmp_path, lease_seconds=60))
    asyncio.run(first.next_trace())
    second = go(shard(tmp_path, lease_seconds=60, shuffle_seed=3), Counting())
    assert second.status == "shared"
    first.close({})
