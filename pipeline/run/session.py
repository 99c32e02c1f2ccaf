"""One point being run: its open files, what is still to do, and what failed."""

import asyncio
import datetime
import traceback
from collections.abc import Iterator
from contextlib import suppress
from io import FileIO
from typing import Any

from pipeline.protocols import Backend, Example
from pipeline.run.backend_columns import ROW_COLUMNS, lift
from pipeline.run.budget import Budget, BudgetSpentError, cost_of
from pipeline.run.pass_fields import generations_of
from pipeline.run.point import Point, record_of
from pipeline.run.trace import Passed, Trace
from pipeline.spec import SpecError
from pipeline.store.claims import Claims
from pipeline.store.files import Row, StoreError, append, encode, write_atomically
from pipeline.store.journal import Journal
from pipeline.store.leases import Held, Leases
from pipeline.store.pass_names import repeats
from pipeline.store.rows import Key, Rows, gather, part_path
from pipeline.store.run_record import RunRecord

SAMPLING_COLUMNS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")

FAILURES = "failures.jsonl"


class Session:
    """The run folder of one point, opened for writing: alone, or as one of several shards."""

    def __init__(self, point: Point, leases: Leases | None = None) -> None:
        """Refuse another fingerprint, take the lease, repair, find what is left to do.

        Raises:
            Held: other writers are in the folder.
            SpecError: the folder holds rows of another fingerprint.
            StoreError: the folder cannot be written.
        """
        self.point = point
        self.shared = point.spec.run.shards > 1
        leases = leases or Leases(point.folder, point.spec.run.lease_seconds)
        try:
            self.record = RunRecord(
                point.folder, record_of(point), self.shared, point.spec.run.shard
            )
            point.folder.mkdir(parents=True, exist_ok=True)
            self.claims = Claims(leases, self.shared)
            with self.claims.kept():
                self.rows, self.journal = self._open_files(leases.writer)
        except OSError as error:
            raise StoreError(
                f"the run folder {point.folder} cannot be written: {error.strerror}; "
                "set run.root or run.dir to a folder that can"
            ) from error
        self.todo = self.left()
        self.total = len(point.examples) * point.spec.sampling.num_samples
        self.failures: list[BaseException] = []
        self._elsewhere = False
        self.budget = self._budget()
        self._shown: dict[str, asyncio.Future[Passed]] = {}
        if self.todo:
            self.record.begin()

    def _open_files(self, writer: str) -> tuple[Rows, Journal]:
        point, whole = self.point, self.claims.whole
        if whole and whole.inherited and point.rows_path.exists():
            # A new file: should the dead writer come back, its appends go to the old one.
            with point.rows_path.open("rb") as old:
                write_atomically(point.rows_path, old)
        rows = Rows(point.rows_path, point.is_complete, writer if self.shared else None)
        if whole:
            self.record.fold()
            gather(point.folder / FAILURES)
        return rows, Journal(point.folder, rows.complete, writer, self.shared)

    def left(self) -> list[tuple[Example, int]]:
        """The traces whose rows are not complete."""
        complete = self.rows.complete
        return [(e, s) for e, s in self.point.keys() if Key(e.id, s) not in complete]

    def work(self) -> Iterator[tuple[Example, int]]:
        """The traces that this writer may begin, claimed as they are asked for."""
        while not self.over and (lease := self.claims.take(self.todo)):
            if self.shared:
                self.rows.refresh(parts=lease.epoch > 1)
                if lease.epoch > 1:
                    self.journal.learn(self.rows.complete)
            traces = self.claims.chunks(self.left()).get(lease.name, [])
            self.claims.start(lease, traces)
            yield from traces

    @property
    def patience(self) -> float:
        """Seconds between two looks at writers that may be dead."""
        return self.point.spec.run.lease_seconds / 10

    def in_doubt(self) -> bool:
        """Whether work may come back from writers that are perhaps dead."""
        if not self.shared or self.broken:
            return False
        self.rows.refresh()
        return self.claims.in_doubt(self.left())

    def _budget(self) -> Budget:
        """What is left of `run.budget` after what rows and journal of earlier attempts cost."""
        limit = self.point.spec.run.budget
        if limit is None:
            return Budget(None)
        known = (self.rows.read(key) for key in self.rows.lines)
        kept = (generation.backend_columns for generation in self.journal.known())
        return Budget(limit, cost_of(known) + cost_of(kept))

    @property
    def broken(self) -> bool:
        """Whether more traces failed than `run.max_failed` allows."""
        return len(self.failures) > self.point.spec.run.max_failed

    @property
    def over(self) -> bool:
        """Whether no further trace may begin."""
        return self.broken or self.budget.exhausted

    async def run_trace(
        self, example: Example, sample: int, number: int, backend: Backend
    ) -> Row | None:
        """Run one trace to its row and write it.

        None where another writer has taken it over, or `run.budget` is spent.
        """
        key, point = Key(example.id, sample), self.point
        stored = self.rows.read(key) if key in self.rows.lines else None
        trace = Trace(
            spec=point.spec,
            task=point.task,
            phases=point.phases,
            cues=point.cues,
            backend=backend,
            journal=self.journal,
            budget=self.budget,
            example=example,
            sample=sample,
            number=number,
            row=stored,
            shown=lambda own: self._show(example, sample, own),
        )
        try:
            passes = await trace.run()
            row = self._row(example, sample, backend, passes, stored or {})
            if not await asyncio.to_thread(self._store, key, row):
                return None
            await self.rows.synced()
        except BudgetSpentError:
            return None
        finally:
            backend.release(number)
            self.claims.ended(key)
        self.record.row_done(_tokens(passes))
        return row

    def _store(self, key: Key, row: Row) -> bool:
        if self.claims.held(key):
            self.rows.append(row, flush=False)
            return True
        if self.shared:
            return False
        folder = self.point.folder
        if not folder.exists():
            raise StoreError(f"{folder} was removed while it was written to; start again")
        raise StoreError(f"another process has taken {folder} over; this one ends")

    async def _show(self, example: Example, sample: int, own: Passed) -> Passed:
        """The pass 1 that a sample reconsiders: its own, or that of `run.pass1_sample`."""
        known = self.point.shown(example, sample)
        shared = self.point.spec.run.pass1_sample is not None and self.point.cues
        if known is not None or not shared:
            return own if known is None else known
        future = self._shown_future(example)
        if sample == self.point.spec.run.pass1_sample and not future.done():
            future.set_result(own)
        return await future

    def _shown_future(self, example: Example) -> asyncio.Future[Passed]:
        if example.id not in self._shown:
            future = self._shown[example.id] = asyncio.get_running_loop().create_future()
            shared = self.point.spec.run.pass1_sample
            key = Key(example.id, -1 if shared is None else shared)
            if key in self.rows.complete:
                stored = self.rows.read(key)
                future.set_result(generations_of(stored["pass1"], self.point.phases))
        return self._shown[example.id]

    def _withhold(self, example: Example, sample: int, error: BaseException) -> None:
        """Tell the traces that wait for this pass 1 that it will not come."""
        if sample == self.point.spec.run.pass1_sample:
            future = self._shown_future(example)
            if not future.done():
                future.set_exception(error)
                future.exception()  # nobody may be waiting

    def _row(
        self, example: Example, sample: int, backend: Backend, passes: dict[str, Any], stored: Row
    ) -> Row:
        spec, point = self.point.spec, self.point
        lifted, passes = lift(passes)
        own = {name: stored[name] for name in ROW_COLUMNS if name in stored} | lifted
        caps = {phase.name: phase.cap for phase in point.phases}
        return {
            **example.metadata,
            "problem": example.question,
            "example_id": example.id,
            "sample_idx": sample,
            "gold_answer": example.target,
            "step": point.step,
            "split": spec.run.split,
            **passes,
            "task": point.task.name,
            "phases": "tagged" if len(point.phases) > 1 else "single",
            "model": point.model_name,
            "revision": spec.model.revision,
            "backend": backend.name,
            **own,
            "quantization": backend.quantization,
            **{name: getattr(spec.sampling, name) for name in SAMPLING_COLUMNS},
            "think_cap": caps.get("think"),
            "answer_cap": caps.get("answer"),
            "max_new_tokens": caps.get("output"),
            "seed": spec.run.seed,
            "fingerprint": point.fingerprint,
            "attempt": self.record.attempt["attempt"],
        }

    def fail(self, example: Example, sample: int, error: BaseException) -> None:
        """Record a trace that failed; what it had finished stays in the journal."""
        self.failures.append(error)
        self._withhold(example, sample, error)
        self.record.attempt["failed"] += 1
        item = {
            "example_id": example.id,
            "sample_idx": sample,
            "error": f"{type(error).__name__}: {error}",
            "traceback": "".join(traceback.format_exception(error)),
            "attempt": self.record.attempt["attempt"],
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        name = self.point.folder / FAILURES
        own = part_path(name, self.claims.leases.writer) if self.shared else name
        with FileIO(own, "ab") as file:
            append(file, encode(item))

    @property
    def status(self) -> str:
        """`complete`, `failed`, `shared` (others have the rest) or `interrupted` (rows missing)."""
        if self.failures:
            return "failed"
        if self.rows.complete.issuperset(self.point.canonical_order()):
            return "complete"
        return "shared" if self._elsewhere else "interrupted"

    def close(self, backend: dict[str, Any]) -> None:
        """Give the files their final form if the point is complete; end the attempt's record."""
        if self.claims.whole and not self.claims.leases.held(self.claims.whole):
            self.rows.close()  # taken over: nothing here is this writer's any more
            self.claims.close()
            return
        if self.shared:
            self.rows.refresh()
            self._elsewhere = self.claims.elsewhere(self.left())
        status = self.status
        self.journal.close(everything_finished=status == "complete" and not self.shared)
        if self.record.attempt:
            if self.budget.exhausted:
                self.record.attempt["stopped_by"] = self.budget.sentence()
            self.record.close(status, backend)
        if self.rows.complete.issuperset(self.point.canonical_order()):
            self._finish()
        self.rows.close()
        self.claims.close()

    def _finish(self) -> None:
        """The last one out: one file of rows, one record, nothing left over."""
        lease = self.claims.alone()
        if lease is None:
            return
        self.rows.refresh()
        self.rows.settle(self.point.canonical_order())
        self.record.fold()
        gather(self.point.folder / FAILURES)
        if self.shared:
            for path in self.point.folder.glob("journal-*.jsonl"):
                path.unlink(missing_ok=True)
        self.claims.merged(lease)


async def open_session(point: Point, stop: asyncio.Event) -> Session | None:
    """Open a point's folder; None when `stop` came first.

    With `run.wait`, or while it is unclear whether its writer lives, as soon as it can be had.

    Raises:
        SpecError: another writer is in the folder.
    """
    run = point.spec.run
    leases = Leases(point.folder, run.lease_seconds)
    while not stop.is_set():
        try:
            return Session(point, leases)
        except Held as held:
            if held.alive and not run.wait:
                raise SpecError(
                    f"{point.folder} is being written by {held.holder}; wait for it to end "
                    "(run.wait=true does), or choose another run.name"
                ) from held
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), run.lease_seconds / 10)
    return None


def _tokens(passes: dict[str, Any]) -> int:
    """Tokens of all passes, `pass2` as a repetition of a lettered one not counted twice."""
    names = [name for name in passes if not repeats(name, passes)]
    return sum(passes[name]["tokens_total"] for name in names if passes[name])
