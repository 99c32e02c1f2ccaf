"""What is asked of a service's Batch API: files, batches and their lines, outages waited for."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from openai import AsyncOpenAI
from openai.types import Batch

from components.backends.openai_api.attempts import Attempts
from components.backends.openai_api.batch_api import BatchApi
from components.backends.openai_api.batch_record import BatchRecord
from components.backends.openai_api.failures import GatewayError
from components.backends.openai_api.pace import duration
from pipeline.protocols import BackendLostError
from pipeline.store import files

T = TypeVar("T")
Value = dict[str, Any]
MARK = "rethink"  # the metadata key that names a batch of ours
FINISHED = ("completed", "failed", "expired", "cancelled")
_LOG = logging.getLogger(__name__)


class BatchCalls:
    """Creates batches, looks at them and reads their files."""

    def __init__(
        self, settings: BatchApi, client: AsyncOpenAI, attempts: Attempts, path: str
    ) -> None:
        """`path` is the endpoint of every line."""
        self._settings, self._client = settings, client
        self._attempts, self._path = attempts, path

    async def create(self, mark: str, bodies: dict[str, Value]) -> str:
        """Upload the requests and create their batch, named by `mark`, once: its id.

        Raises:
            GatewayError: the service refuses it, or is out for too long.
        """
        call = self._creation(mark, bodies)
        return await self._patiently("a batch cannot be submitted", call)

    def _creation(self, mark: str, bodies: dict[str, Value]) -> Callable[[], Awaitable[str]]:
        """What uploads and creates."""
        lines = (
            {"custom_id": name, "method": "POST", "url": self._path, "body": body}
            for name, body in bodies.items()
        )
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        window: Any = self._settings.completion_window
        endpoint: Any = self._path
        tried = False

        async def create() -> str:
            nonlocal tried
            found = await self._found(mark) if tried else None
            if found is not None:  # the answer to an earlier attempt was lost on its way
                return found
            sent = await self._client.files.create(file=(f"{mark}.jsonl", data), purpose="batch")
            tried = True
            batch = await self._client.batches.create(
                input_file_id=sent.id,
                endpoint=endpoint,
                completion_window=window,
                metadata={MARK: mark},
            )
            return batch.id

        return create

    async def _patiently(self, trouble: str, call: Callable[[], Awaitable[T]]) -> T:
        """The result of a call; outages are waited for, for the completion window at most."""
        end = time.monotonic() + (duration(self._settings.completion_window) or 0.0)
        while True:
            try:
                return await self._attempts.run(0, call)
            except GatewayError as error:
                if not error.transient or time.monotonic() > end:
                    raise
                seconds = self._settings.poll_seconds
                _LOG.warning("%s (%s); tried again in %g s", trouble, error, seconds)
                await asyncio.sleep(seconds)

    async def finished(self, record: BatchRecord) -> Batch | None:
        """The batch once it is finished; None where the service does not know it."""
        name = record.batch
        if name is None:
            trouble = "batches cannot be listed"
            name = await self._patiently(trouble, partial(self._found, record.path.stem))
        while name is not None:
            try:
                call = partial(self._client.batches.retrieve, name)
                batch = await self._patiently(f"batch {name} cannot be looked at", call)
            except GatewayError as error:
                if error.status == 404:
                    _LOG.warning("the service does not know batch %s; its requests go anew", name)
                    return None
                raise BackendLostError(f"backend.batch: batch {name}: {error}") from None
            if batch.status in FINISHED:
                return batch
            await asyncio.sleep(self._settings.poll_seconds)
        return None

    async def _found(self, mark: str) -> str | None:
        """The id of a batch that was created although its record does not say so."""
        async for batch in self._client.batches.list(limit=100):
            if (batch.metadata or {}).get(MARK) == mark:
                return batch.id
        return None

    async def lines(self, batch: Batch) -> AsyncIterator[Value]:
        """The readable lines of a batch's files; a lost file or a torn line costs its rows."""
        for file in filter(None, (batch.output_file_id, batch.error_file_id)):
            trouble = f"file {file} of batch {batch.id} cannot be read"
            try:
                content = await self._patiently(trouble, partial(self._client.files.content, file))
            except GatewayError as error:
                if error.status != 404:
                    raise BackendLostError(f"backend.batch: {trouble}: {error}") from None
                _LOG.warning("%s (%s); its requests go anew", trouble, error)
                continue
            for raw in content.content.split(b"\n"):
                line = files.decode(raw)
                if line is not None and isinstance(line.get("custom_id"), str):
                    yield line
                elif raw.strip():
                    _LOG.warning("%s: a line is torn; its request goes anew", trouble)
