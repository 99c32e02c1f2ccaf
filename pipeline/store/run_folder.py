"""The run folder of one point, opened for writing: its lease, record, rows and journal."""

import logging
import time
from collections.abc import Mapping
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any

from pipeline.store.claims import Claims, Traces
from pipeline.store.environment import peak_memory_bytes
from pipeline.store.files import (
    Fence,
    Row,
    StoreError,
    append,
    encode,
    remove_scratch,
    write_atomically,
)
from pipeline.store.folder_plan import FolderPlan
from pipeline.store.journal import Journal, open_journal
from pipeline.store.leases import Lease, Leases
from pipeline.store.row_heads import Key, num_tokens
from pipeline.store.row_index import count_attempts, part_path
from pipeline.store.rows import Rows, gather, open_rows
from pipeline.store.run_record import RunRecord
from pipeline.store.stored_record import refuse_other_spec

FAILURES = "failures.jsonl"
_LOG = logging.getLogger(__name__)


class RunFolder:
    """An open run folder: alone, or as one of several shards. See `open_run_folder`.

    Its methods read and write files: off the event loop, please.
    """

    def __init__(
        self,
        plan: FolderPlan,
        claims: Claims,
        fence: Fence,
        record: RunRecord,
        rows: Rows,
        journal: Journal,
    ) -> None:
        """Everything is open, and the lease is held."""
        self.plan, self.claims, self.fence = plan, claims, fence
        self.record, self.rows, self.journal = record, rows, journal
        self.has_rest_elsewhere = False  # known once it is closed

    def left(self, chunk: str | None = None) -> Traces:
        """The traces, of all or of one chunk, whose rows are not complete."""
        complete = self.rows.complete
        traces = self.plan.traces if chunk is None else self.claims.chunks[chunk]
        return [(e, sample) for e, sample in traces if Key(e.id, sample) not in complete]

    @property
    def is_complete(self) -> bool:
        """Whether every row that was asked for is there."""
        return self.rows.complete.issuperset(self.plan.order)

    @property
    def num_complete(self) -> int:
        """Rows of this run that are complete; a folder may hold those of other slices too."""
        return sum(key in self.rows.complete for key in self.plan.order)

    def claim(self) -> Traces:
        """The traces of the next chunk that this writer can have; empty when there is none."""
        if self.plan.shared:
            self.rows.refresh()
        while lease := self.claims.take(self.left):
            if self.plan.shared:
                self._look_at_others(lease)
            traces = self.left(lease.name)
            self.claims.start(lease, traces)
            if traces:
                return traces
        return []

    def _look_at_others(self, lease: Lease) -> None:
        """Take in what others left for a chunk; a merge of one with less to do took own files."""
        self.check_lease()
        merged = [file.reopen_if_removed() for file in (self.rows, self.journal)]
        if any(merged) or lease.epoch > 1:
            self.rows.refresh()
            self.journal.learn(self.rows.complete)

    def is_taken_over(self, key: Key) -> bool:
        """Whether another shard has taken the trace of a row over."""
        return self.plan.shared and not self.claims.held(key)

    def may_get_more(self) -> bool:
        """Whether work may come from writers that gave it back, or are perhaps dead."""
        if not self.plan.shared:
            return False
        self.rows.refresh()
        return self.claims.may_get_more(self.left)

    def append(self, row: Row) -> bool:
        """Write the row of a trace; False where another shard has taken the trace over.

        Raises:
            StoreError: the file cannot be written, or another process has taken the folder over.
        """
        key = Key(row["example_id"], row["sample_idx"])
        if self.is_taken_over(key):
            return False
        if not self.plan.shared:
            self.check_lease()
        stored = num_tokens(self.rows.read(key)) if key in self.rows.lines else 0
        peak, started = peak_memory_bytes(), time.perf_counter()
        self.rows.append(row)
        self.record.write_seconds += time.perf_counter() - started
        self.record.write_bytes += peak_memory_bytes() - peak
        self.record.row_done(num_tokens(row) - stored)  # passes of an earlier attempt are its own
        return True

    def append_failure(self, item: Row) -> None:
        """Add a line to `failures.jsonl`."""
        path = self.plan.folder / FAILURES
        own = part_path(path, self.claims.leases.writer) if self.plan.shared else path
        self.record.attempt["failed"] += 1
        with FileIO(own, "ab") as file:
            append(file, encode(item))

    def check_lease(self) -> None:
        """Refuse to go on once the lease on the folder is lost. Raises StoreError."""
        self.fence.check()

    def close(self, failed: bool, about: Mapping[str, Any], backend: dict[str, Any]) -> str:
        """Give the files their final form if everything is there; end the attempt's record.

        `about` is added to the record. Returns the state: `complete`, `failed`, `shared` (others
        have the rest) or `interrupted` (rows are missing).

        Raises:
            StoreError: another process has taken the folder over; nothing more is written to it.
        """
        try:
            self.check_lease()
            self.rows.refresh()
            self.has_rest_elsewhere = self.claims.elsewhere(self.left)
            state = self.state(failed)
            self.journal.close(everything_finished=state == "complete" and not self.plan.shared)
            if self.record.attempt:
                self.record.attempt |= about
                self.record.close(state, backend)
            if self.is_complete:
                self._finish()
        finally:
            self.rows.close()
            self.journal.close(everything_finished=False)
            self.claims.close()
        return self.state(failed)

    def state(self, failed: bool) -> str:
        """`complete`, `failed`, `shared` or `interrupted`."""
        if failed:
            return "failed"
        if self.is_complete:
            return "complete"
        return "shared" if self.has_rest_elsewhere else "interrupted"

    def _finish(self) -> None:
        """The last one out: one file of rows, one record, nothing left over."""
        lease = self.claims.try_merge_lease()
        if lease is None:
            return
        fence = self.claims.fence(lease)
        fence.check()
        _remove_scratch(self.plan.folder, self.claims.leases)
        self.rows.fence = self.record.fence = fence
        journals = list(self.plan.folder.glob("journal-*.jsonl")) if self.plan.shared else []
        self.rows.settle(self.plan.order)
        fence.check()
        self.fold_records()
        gather(self.plan.folder / FAILURES, fence)
        for path in journals:
            fence.check()
            path.unlink(missing_ok=True)
        fence.check()
        self.claims.merge_done(lease)

    def fold_records(self) -> None:
        """Bring the records of all attempts into run.json and end those of killed writers."""
        self.record.fold()
        counts = partial(count_attempts, self.plan.rows_path)
        self.record.amend(self._living(), self.is_complete, counts)

    def _living(self) -> set[str]:
        return _living(self.claims.leases)


def open_run_folder(plan: FolderPlan, leases: Leases) -> RunFolder:
    """Refuse another spec, take the lease, repair and index what is there.

    Raises:
        Held: other writers are in the folder.
        SpecError: the folder holds rows of another fingerprint.
        StoreError: the folder cannot be written, or holds what this version cannot read.
    """
    refuse_other_spec(plan.folder, plan.facts)  # before anything is written
    claims = Claims(leases, plan.shared, plan.traces, plan.work)
    try:
        plan.folder.mkdir(parents=True, exist_ok=True)
        claims.enter()
        with claims.undo_on_error():
            return _opened(plan, claims)
    except OSError as error:
        raise StoreError(
            f"the run folder {plan.folder} cannot be written: {error.strerror}; "
            "set run.root or run.dir to a folder that can"
        ) from error


def _opened(plan: FolderPlan, claims: Claims) -> RunFolder:
    whole, writer = claims.whole_lease, claims.leases.writer
    fence = claims.fence(whole)
    if whole and whole.inherited:
        _remove_scratch(plan.folder, claims.leases)
    record = RunRecord(plan.folder, plan.facts, plan.shared, plan.shard, fence)
    record.open()  # looks again: whoever held the lease until now may have had another spec
    if whole and whole.inherited and plan.rows_path.exists():
        # A new file: should the dead writer come back, its appends go to the old one.
        with plan.rows_path.open("rb") as old:
            write_atomically(plan.rows_path, old, fence)
    part = writer if plan.shared else None
    rows = open_rows(plan.rows_path, plan.is_complete, part, plan.fingerprint, fence)
    try:
        journal = open_journal(plan.folder, rows.complete, writer, plan.shared, fence)
    except BaseException:
        rows.close()
        raise
    folder = RunFolder(plan, claims, fence, record, rows, journal)
    if whole:
        folder.fold_records()
        gather(plan.folder / FAILURES, fence)
    if not folder.is_complete or record.last_status != "complete":
        record.start(rows.index.last_attempt)
    _warn_of_other_graders(plan, rows)
    return folder


def _remove_scratch(folder: Path, leases: Leases) -> None:
    """Remove what killed writers left half written, among the leases too."""
    living = _living(leases)
    for place in (folder, leases.folder):
        remove_scratch(place, living)


def _living(leases: Leases) -> set[str]:
    """This writer, and the others that are not known to be dead."""
    others = leases.others()
    return {leases.writer} | {name for name, alive in others.items() if alive is not False}


def _warn_of_other_graders(plan: FolderPlan, rows: Rows) -> None:
    own = plan.facts.get("grader")
    num_others = sum(
        count for name, count in rows.index.num_by_grader.items() if name not in (None, own)
    )
    if num_others:
        _LOG.warning(
            "%s: %d rows were judged by other settings of the task than this run's; "
            "`launch/summarize.py --recompute` judges all of them alike",
            plan.folder,
            num_others,
        )
