"""The Batch API: requests in files, answered within a day at a lower price.

A batch goes on at the service while nobody waits for it. What was submitted is recorded in the
cache folder, so that a later attempt at the same requests collects instead of submitting again.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from openai.types import Batch

from components.backends.openai_api.answers import BadAnswerError, decode
from components.backends.openai_api.failures import Failure, GatewayError
from components.backends.openai_api.retries import Attempts
from pipeline.protocols import BackendLostError
from pipeline.spec import digest, require

MARK = "rethink"  # the metadata key that names a batch of ours
OVER = ("completed", "failed", "expired", "cancelled")
Value = dict[str, Any]


@dataclass(frozen=True, slots=True)
class BatchApi:
    """Settings of the Batch API.

    A batch is submitted when `gather` seconds brought no further request, or at `most` requests; it
    is looked at every `poll` seconds. `path` is the endpoint that its lines name, null: OpenAI's.
    """

    enabled: bool = False
    most: int = 20_000
    gather: float = 10.0
    poll: float = 60.0
    window: str = "24h"
    path: str | None = None

    def __post_init__(self) -> None:
        """Check ranges."""
        require(self.most >= 1, "backend.batch.most", "be 1 or more", self.most)
        for name in ("gather", "poll"):
            value = getattr(self, name)
            require(value > 0, f"backend.batch.{name}", "be above 0", value)


class BatchJobs:
    """Gathers requests into batches and hands out their results."""

    def __init__(
        self, settings: BatchApi, client: AsyncOpenAI, attempts: Attempts, path: str, folder: Path
    ) -> None:
        """`path` is the endpoint of every line; `folder` keeps what is under way."""
        self.settings, self.folder = settings, folder
        self._client, self._attempts, self._path = client, attempts, path
        self._waiting: dict[str, asyncio.Future[Value | None]] = {}
        self._pending: dict[str, Value] = {}
        self._owner: dict[str, Path] = {}  # id -> record of the batch that it is in
        self._tasks: set[asyncio.Task[None]] = set()
        self._done: set[Path] = set()
        self._gathering: asyncio.Task[None] | None = None
        self._where = ""

    def attach(self, where: str) -> None:
        """Find batches that an earlier attempt left under way at `where`."""
        self._where = where
        for path in sorted(self.folder.glob("*.json")):
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["where"] == where:
                self._owner |= dict.fromkeys(record["ids"], path)

    async def result(self, body: Value, salt: str) -> Value:
        """The response to one body. `salt` tells equal bodies of different rows apart.

        Raises:
            GatewayError: the service refused this request, or never answered it.
            BackendLostError: the service refused the batch.
        """
        name = self._name(body, salt)
        for _ in range(self._attempts.retry.retries + 1):
            future: asyncio.Future[Value | None] = asyncio.get_running_loop().create_future()
            self._waiting[name] = future
            if name in self._owner:
                self._follow(self._owner[name])
            else:
                self._add(name, body)
            value = await future
            if value is not None:
                return value
        raise GatewayError("no batch answered this request (backend.retry.retries)", None)

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
            while size != len(self._pending) < self.settings.most:
                size = len(self._pending)
                await asyncio.sleep(self.settings.gather)
            names = list(self._pending)[: self.settings.most]
            await self._submit({name: self._pending.pop(name) for name in names})

    async def _submit(self, bodies: dict[str, Value]) -> None:
        mark = digest([self._where, sorted(bodies)])[:32]
        path = self.folder / f"{mark}.json"
        record = {"where": self._where, "ids": list(bodies), "batch": None}
        _write(path, record)  # before the service hears of it: a kill leaves something to look for
        self._owner |= dict.fromkeys(bodies, path)
        batch = await self._created(mark, bodies)
        _write(path, record | {"batch": batch.id})
        self._follow(path)

    async def _created(self, mark: str, bodies: dict[str, Value]) -> Batch:
        lines = (
            {"custom_id": name, "method": "POST", "url": self._path, "body": body}
            for name, body in bodies.items()
        )
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        window: Any = self.settings.window
        endpoint: Any = self._path

        async def create() -> Batch:
            sent = await self._client.files.create(file=(f"{mark}.jsonl", data), purpose="batch")
            return await self._client.batches.create(
                input_file_id=sent.id,
                endpoint=endpoint,
                completion_window=window,
                metadata={MARK: mark},
            )

        return await self._attempts.run(0, create)

    def _follow(self, path: Path) -> None:
        if not any(task.get_name() == path.name for task in self._tasks):
            self._start(self._collect(path)).set_name(path.name)

    async def _collect(self, path: Path) -> None:
        """Poll one batch until it is over, then hand out its results."""
        record = json.loads(path.read_text(encoding="utf-8"))
        batch = await self._over(record["batch"] or await self._found(path.stem))
        answered: set[str] = set()
        if batch is not None:
            async for line in self._lines(batch):
                if self._hand_out(line):
                    answered.add(line["custom_id"])
        for name in set(record["ids"]) - answered:
            self._owner.pop(name, None)
            self._tell(name, None)
        self._done.add(path)

    async def _over(self, name: str | None) -> Batch | None:
        """The batch once it is over; None where the service does not know it."""
        while name is not None:
            try:
                batch = await self._attempts.run(0, lambda: self._client.batches.retrieve(name))
            except GatewayError as error:
                if error.status == 404:
                    return None
                raise
            if batch.status == "failed":
                found = (batch.errors.data or []) if batch.errors else []
                why = "; ".join(str(error.message) for error in found)
                raise BackendLostError(f"backend.batch: batch {name} was refused: {why}")
            if batch.status in OVER:
                return batch
            await asyncio.sleep(self.settings.poll)
        return None

    async def _found(self, mark: str) -> str | None:
        """The id of a batch that was created although its record does not say so."""
        async for batch in self._client.batches.list(limit=100):
            if (batch.metadata or {}).get(MARK) == mark:
                return batch.id
        return None

    async def _lines(self, batch: Batch) -> AsyncIterator[Value]:
        for file in filter(None, (batch.output_file_id, batch.error_file_id)):
            content = await self._attempts.run(0, partial(self._client.files.content, file))
            for line in content.content.splitlines():
                yield json.loads(line)

    def _hand_out(self, line: Value) -> bool:
        """Tell who waits for a line; False where it should be asked again."""
        response = line.get("response") or {}
        status = response.get("status_code", 502)
        if status == 200:
            try:
                self._tell(line["custom_id"], decode(json.dumps(response.get("body")).encode()))
            except BadAnswerError:
                return False
            return True
        text = f"HTTP {status}: {json.dumps(line.get('error') or response.get('body'))[:500]}"
        if Failure(status, text, {}).transient:
            return False
        future = self._waiting.get(line["custom_id"])
        if future is not None and not future.done():
            future.set_exception(GatewayError(text, status))
        return True

    def _tell(self, name: str, value: Value | None) -> None:
        future = self._waiting.get(name)
        if future is not None and not future.done():
            future.set_result(value)

    async def close(self) -> None:
        """Stop waiting; forget batches that were collected, whose answers their rows now hold."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for path in self._done:
            path.unlink(missing_ok=True)


def _write(path: Path, record: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    scratch.write_text(json.dumps(record), encoding="utf-8")
    os.replace(scratch, path)
