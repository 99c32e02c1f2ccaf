"""One point being run: what is still to do, what may be spent, what failed."""

import asyncio
import datetime
import logging
import traceback
from collections import deque
from contextlib import suppress
from typing import Any

from pipeline.protocols import Backend, Example, StoppedError
from pipeline.run.budget import RESERVED, Budget, BudgetSpentError, Reserved, cost_of
from pipeline.run.pass_fields import cue_hash
from pipeline.run.point import Point, record_of
from pipeline.run.row_fields import row_of
from pipeline.run.shared_pass1 import SharedPass1
from pipeline.run.trace import Listener, Trace
from pipeline.spec import SpecError, digest
from pipeline.store.files import Row, StoreError
from pipeline.store.folder_plan import FolderPlan
from pipeline.store.leases import Held, Leases
from pipeline.store.row_heads import Key
from pipeline.store.run_folder import RunFolder, open_run_folder

_LOG = logging.getLogger(__name__)


class Session:
    """One point with its open run folder, for as long as one process works on it."""

    def __init__(
        self, point: Point, folder: RunFolder, budget: Budget, stop: asyncio.Event | None = None
    ) -> None:
        """Once `stop` is set no further request is sent. See `open_session`."""
        self.point, self.folder, self.budget = point, folder, budget
        self.stop = stop or asyncio.Event()
        self.todo = folder.left()
        self.failures: list[BaseException] = []
        self.listener: Listener | None = None  # of what traces say in pass 1, as they say it
        self._claimed: deque[tuple[Example, int]] = deque()
        self._nothing_to_claim = False
        self._pass1 = SharedPass1(point, self._complete_row)

    async def next_trace(self) -> tuple[Example, int] | None:
        """The next trace that this writer may begin; None when there is none for now."""
        if not (self._claimed or self._nothing_to_claim or self.is_over):
            self._claimed.extend(await asyncio.to_thread(self.folder.claim))
            self._nothing_to_claim = not self._claimed
        return self._claimed.popleft() if self._claimed and not self.is_over else None

    async def may_get_more(self) -> bool:
        """Whether work may come from other writers, who left it; then ask again later."""
        self._nothing_to_claim = False
        return not self.is_over and await asyncio.to_thread(self.folder.may_get_more)

    @property
    def is_broken(self) -> bool:
        """Whether more traces failed than `run.max_failed` allows."""
        return len(self.failures) > self.point.spec.run.max_failed

    @property
    def is_over(self) -> bool:
        """Whether no further trace may begin."""
        return self.is_broken or self.budget.exhausted

    def _sends_no_more(self) -> bool:
        return self.is_broken or self.stop.is_set()

    async def run_trace(
        self, example: Example, sample: int, number: int, backend: Backend
    ) -> Row | None:
        """Run one trace to its row and write it.

        None where another writer has taken it over, `run.budget` is spent or the run is stopping.
        """
        key = Key(example.id, sample)
        try:
            has_row = key in self.folder.rows.lines
            stored = await asyncio.to_thread(self._stored_row, key) if has_row else None
            trace = Trace(
                spec=self.point.spec,
                task=self.point.task,
                phases=self.point.phases,
                cues=self.point.cues,
                backend=backend,
                journal=self.folder.journal,
                budget=self.budget,
                example=example,
                sample=sample,
                number=number,
                row=stored,
                shown=lambda own: self._pass1.to_reconsider(example, sample, own),
                stopping=self._sends_no_more,
                listener=self.listener,
            )
            passes = await trace.run()
            row = row_of(self.point, example, sample, passes, backend, stored)
            row["attempt"] = self.folder.record.attempt["attempt"]
            if not await asyncio.to_thread(self.folder.append, row):
                return None
            await self.folder.rows.synced()
        except (BudgetSpentError, StoppedError) as error:
            self._pass1.withhold(example, sample, error)
            return None
        except StoreError as error:
            if not self.folder.is_taken_over(key):
                raise
            self._pass1.withhold(example, sample, error)
            return None
        finally:
            backend.release(number)
            self.folder.claims.ended(key)
        return row

    def _stored_row(self, key: Key) -> Row | None:
        rows = self.folder.rows
        return rows.read(key) if key in rows.lines else None

    def _complete_row(self, key: Key) -> Row | None:
        return self._stored_row(key) if key in self.folder.rows.complete else None

    def fail(self, example: Example, sample: int, error: BaseException) -> None:
        """Record a trace that failed; what it had finished stays in the journal."""
        self.failures.append(error)
        self._pass1.withhold(example, sample, error)
        self.folder.append_failure(
            {
                "example_id": example.id,
                "sample_idx": sample,
                "error": f"{type(error).__name__}: {error}",
                "traceback": "".join(traceback.format_exception(error)),
                "attempt": self.folder.record.attempt["attempt"],
                "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            }
        )

    @property
    def status(self) -> str:
        """`complete`, `failed`, `shared` (others have the rest) or `interrupted` (rows missing)."""
        return self.folder.state(failed=bool(self.failures))

    def close(self, backend: dict[str, Any]) -> None:
        """Give the files their final form if the point is complete; end the attempt's record.

        Reads and writes files: off the event loop, please.
        """
        self.budget.close()
        about = {"stopped_by": self.budget.sentence()} if self.budget.exhausted else {}
        self.folder.close(bool(self.failures), about, backend)


def plan_of(point: Point) -> FolderPlan:
    """What the run folder of a point is to hold."""
    return FolderPlan(
        rows_path=point.rows_path,
        facts=record_of(point),
        traces=list(point.keys()),
        order=point.canonical_order(),
        is_complete=point.is_complete,
        shared=point.spec.run.shards > 1,
        shard=point.spec.run.shard,
        work=_work_of(point) if point.spec.run.shards > 1 else "",
    )


def _work_of(point: Point) -> str:
    """A hash of the rows of a point and of their passes, in whatever order they are made."""
    return digest([sorted(point.canonical_order()), sorted(map(cue_hash, point.cues))])


def open_now(
    point: Point, leases: Leases | None = None, stop: asyncio.Event | None = None
) -> Session:
    """Open a point's folder. Raises what `open_run_folder` raises, Held among it."""
    leases = leases or Leases(point.folder, point.spec.run.lease_seconds)
    folder = open_run_folder(plan_of(point), leases)
    with folder.claims.undo_on_error():
        return Session(point, folder, _budget(point, folder), stop)


def _budget(point: Point, folder: RunFolder) -> Budget:
    """What is left of `run.budget` after what rows and journal of earlier attempts cost."""
    limit = point.spec.run.budget
    if limit is None:
        return Budget(None)
    rows = (folder.rows.read(key) for key in folder.rows.lines)
    journalled = (generation.backend_columns for generation in folder.journal.earlier())
    reserved = Reserved.read(point.folder / RESERVED)
    return Budget(limit, cost_of(rows) + cost_of(journalled), reserved)


async def open_session(point: Point, stop: asyncio.Event) -> Session | None:
    """Open a point's folder; None when `stop` came first.

    With `run.wait`, or while it is unclear whether its writer lives, as soon as it can be had.

    Raises:
        SpecError: another writer is in the folder.
    """
    run = point.spec.run
    leases = Leases(point.folder, run.lease_seconds)
    has_said_why = False
    while not stop.is_set():
        try:
            return await asyncio.to_thread(open_now, point, leases, stop)
        except Held as held:
            if held.alive and not run.wait:
                raise SpecError(
                    f"{point.folder} is being written by {held.holder}; wait for it to end "
                    "(run.wait=true does), or choose another run.name"
                ) from held
            if not has_said_why:
                _LOG.warning(_why_one_waits(point, held))
                has_said_why = True
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), leases.lease_poll_seconds)
    return None


def _why_one_waits(point: Point, held: Held) -> str:
    if held.alive:
        return f"waiting for {held.holder}, which is writing {point.folder} (run.wait=true)"
    return (
        f"waiting to see whether {held.holder}, which was writing {point.folder}, is alive: up to "
        f"{point.spec.run.lease_seconds:g} seconds (run.lease_seconds)"
    )
