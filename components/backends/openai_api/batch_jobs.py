"""Requests gathered into batches, whose answers are handed out when they come."""

import asyncio
import json
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from openai.types import Batch

from components.backends.openai_api.answers import Answered, BadAnswerError, decode, read
from components.backends.openai_api.attempts import Attempts
from components.backends.openai_api.batch_api import BatchApi
from components.backends.openai_api.batch_calls import BatchCalls, Value
from components.backends.openai_api.batch_record import BatchRecord
from components.backends.openai_api.failures import Failure, GatewayError
from pipeline.protocols import BackendLostError, StoppedError
from pipeline.spec import digest

UNUSABLE = ("failed", "cancelled")  # nobody but a person can say whether to submit it anew


class BatchJobs:
    """Gathers requests into batches and hands out their answers."""

    def __init__(
        self, settings: BatchApi, client: AsyncOpenAI, attempts: Attempts, path: str, folder: Path
    ) -> None:
        """`path` is the endpoint of every line; `folder` keeps what is under way."""
        self.settings, self.folder = settings, folder
        self._retries = attempts.retry.retries
        self._calls = BatchCalls(settings, client, attempts, path)
        self._waiting: dict[str, asyncio.Future[Answered | None]] = {}
        self._unclaimed: dict[str, Answered] = {}  # collected before anybody asked
        self._discarded: dict[str, list[Value | None]] = {}  # usage of answers without a use
        self._pending: dict[str, Value] = {}
        self._owner: dict[str, BatchRecord] = {}  # id -> the batch that it is in
        self._tasks: set[asyncio.Task[None]] = set()
        self._collected: set[Path] = set()
        self._gathering: asyncio.Task[None] | None = None
        self._where = ""

    def attach(self, where: str) -> None:
        """Find batches that an earlier attempt left under way at `where`."""
        self._where = where
        for path in sorted(self.folder.glob("*.json")):
            record = BatchRecord.read(path)
            if record is not None and record.where == where:
                self._owner |= dict.fromkeys(record.ids, record)

    async def result(self, body: Value, salt: str) -> tuple[Answered, list[Value | None]]:
        """The answer to one body, and the usage of answers to it that could not be used.

        `salt` tells equal bodies of different rows apart.

        Raises:
            GatewayError: the service refused this request, or never answered it.
            BackendLostError: the service refused the batch.
        """
        name = self._name(body, salt)
        for _ in range(self._retries + 1):
            answered = self._unclaimed.pop(name, None) or await self._outcome(name, body)
            if answered is not None:
                return answered, self._discarded.pop(name, [])
        error = GatewayError("no batch answered this request (backend.retry.retries)", None)
        error.discarded = self._discarded.pop(name, [])
        raise error

    def _outcome(self, name: str, body: Value) -> "asyncio.Future[Answered | None]":
        """What the batch will bring in which the request lies, or into which it is put."""
        future: asyncio.Future[Answered | None] = asyncio.get_running_loop().create_future()
        self._waiting[name] = future
        if name in self._owner:
            self._follow(self._owner[name])
        else:
            self._add(name, body)
        return future

    def _name(self, body: Value, salt: str) -> str:
        return digest([self._where, body, salt])[:48]

    def holds(self, body: Value, salt: str) -> bool:
        """Whether a batch of an earlier attempt has this request."""
        return self._name(body, salt) in self._owner

    def _add(self, name: str, body: Value) -> None:
        self._pending[name] = body
        if self._gathering is None or self._gathering.done():
            self._gathering = self._start(self._gather())

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A task that died takes everyone who waits with it: nobody else would tell them."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(error)

    async def _gather(self) -> None:
        """Wait until no further request comes, then submit."""
        while self._pending:
            size = -1
            while size != len(self._pending) < self.settings.max_requests:
                size = len(self._pending)
                await asyncio.sleep(self.settings.gather_seconds)
            names = list(self._pending)[: self.settings.max_requests]
            if names:
                await self._submit({name: self._pending.pop(name) for name in names})

    async def _submit(self, bodies: dict[str, Value]) -> None:
        mark = digest([self._where, sorted(bodies), time.time_ns()])[:32]
        record = BatchRecord(self.folder / f"{mark}.json", self._where, tuple(bodies))
        record.write()  # before the service hears of it: a kill leaves something to look for
        try:
            batch = await self._calls.create(mark, bodies)
        except GatewayError as error:
            if not error.transient:
                record.path.unlink(missing_ok=True)
            raise BackendLostError(f"backend.batch: a batch was refused: {error}") from None
        record = BatchRecord(record.path, self._where, record.ids, batch)
        record.write()
        self._owner |= dict.fromkeys(bodies, record)
        self._follow(record)

    def _follow(self, record: BatchRecord) -> None:
        if not any(task.get_name() == record.path.name for task in self._tasks):
            self._start(self._collect(record)).set_name(record.path.name)

    async def _collect(self, record: BatchRecord) -> None:
        """Poll one batch until it is finished, then hand out its answers."""
        batch = await self._calls.finished(record)
        answered: set[str] = set()
        if batch is not None:
            async for line in self._calls.lines(batch):
                if self._hand_out(line):
                    answered.add(line["custom_id"])
        unanswered = [name for name in record.ids if name not in answered]
        for name in unanswered:
            self._owner.pop(name, None)
        self._shorten(record, answered)
        if batch is not None and batch.status in UNUSABLE and unanswered:
            raise BackendLostError(_refusal(batch, len(unanswered)))
        for name in unanswered:
            self._tell(name, None)

    def _shorten(self, record: BatchRecord, answered: set[str]) -> None:
        """Leave the answered requests in the record: the others may lie in another batch soon.

        The answers' rows may not be written yet, so what holds them is removed by `close`.
        """
        ids = tuple(name for name in record.ids if name in answered)
        if not ids:
            record.path.unlink(missing_ok=True)
            return
        BatchRecord(record.path, record.where, ids, record.batch).write()
        self._collected.add(record.path)

    def _hand_out(self, line: Value) -> bool:
        """Tell who waits for a line; False where the request should be sent again, if asked for."""
        name, found = line["custom_id"], line.get("response")
        response = found if isinstance(found, dict) else {}
        status = response.get("status_code")
        status = status if isinstance(status, int) else 502
        if status == 200:
            return self._use(name, response.get("body"))
        text = f"HTTP {status}: {json.dumps(line.get('error') or response.get('body'))[:500]}"
        future = self._waiting.get(name)
        if Failure(status, text, {}).transient or future is None or future.done():
            return False
        future.set_exception(GatewayError(text, status))
        return False

    def _use(self, name: str, body: object) -> bool:
        try:
            answered = read(decode(json.dumps(body).encode()))
        except BadAnswerError as error:
            if error.may_be_paid:
                self._discarded.setdefault(name, []).append(error.usage or None)
            return False
        answered.batched = True
        self._tell(name, answered)
        return True

    def _tell(self, name: str, answered: Answered | None) -> None:
        future = self._waiting.get(name)
        if future is not None and not future.done():
            future.set_result(answered)
        elif answered is not None:
            self._unclaimed[name] = answered

    def stop(self) -> None:
        """Submit nothing any more, and let nobody wait: the next attempt takes batches up again."""
        self._pending.clear()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(StoppedError())

    async def close(self) -> None:
        """Stop waiting; forget batches that were collected, whose answers their rows now hold."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for path in self._collected:
            path.unlink(missing_ok=True)


def _refusal(batch: Batch, num_unanswered: int) -> str:
    """The sentence about a batch that the service refused or a person cancelled."""
    what = f"backend.batch: batch {batch.id}, with {num_unanswered} unanswered requests,"
    if batch.status == "cancelled":
        return f"{what} was cancelled at the service: run again to submit them in a new one"
    found = (batch.errors.data or []) if batch.errors else []
    why = "; ".join(str(error.message) for error in found)
    return f"{what} was refused: {why}; run again to submit them in a new one"
