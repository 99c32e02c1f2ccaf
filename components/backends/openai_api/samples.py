"""Samples of one prompt in one request, where a service makes several at once."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from components.backends.openai_api.answers import Answered, Said
from pipeline.protocols import Request

Ask = Callable[[Request, Callable[[], int]], Awaitable[Answered]]
GATHER_SECONDS = 0.02


@dataclass(slots=True)
class Share:
    """A choice, its part of the response's usage, how many share it, and the whole response.

    `first` says that what the whole response cost beside its usage is counted with this choice.
    """

    said: Said
    usage: dict[str, Any]
    shared_by: int
    answered: Answered
    first: bool = True


class _Joint:
    """One request on its way, which others may join until it is sent."""

    def __init__(self) -> None:
        self.members = 0
        self.closed = False
        self.task: asyncio.Task[Answered] | None = None

    def join(self) -> int:
        self.members += 1
        return self.members - 1

    def close(self) -> int:
        self.closed = True
        return self.members


class Samples:
    """Joins requests of the same group until they are sent.

    A service that returns fewer choices than asked for is asked one by one from then on.
    """

    def __init__(self, ask: Ask, together: bool) -> None:
        """`ask(request, count)` calls `count` when it sends, and gets that many choices."""
        self._ask = ask
        self.together = together
        self._open: dict[str, _Joint] = {}
        self._tasks: set[asyncio.Task[Answered]] = set()

    async def one(self, request: Request) -> Share:
        """One choice for `request`, alone or with others of its group."""
        if request.group.size > 1 and self.together and request.on_token is None:
            share = await self._joined(request)
            if share is not None:
                return share
        answered = await self._ask(request, lambda: 1)
        return Share(answered.choices[0], dict(answered.usage), 1, answered)

    async def _joined(self, request: Request) -> Share | None:
        joint = self._open.get(request.group.id)
        if joint is None or joint.closed:
            joint = self._open[request.group.id] = _Joint()
            joint.task = asyncio.create_task(self._send(request, joint))
            self._tasks.add(joint.task)
            joint.task.add_done_callback(self._tasks.discard)
        number = joint.join()
        assert joint.task is not None
        answered = await asyncio.shield(joint.task)
        got = min(joint.members, len(answered.choices))
        if got < joint.members:
            self.together = False
        if number >= got:
            return None
        usage = shared_usage(answered.usage, got)[number]
        return Share(answered.choices[number], usage, got, answered, number == 0)

    async def _send(self, request: Request, joint: _Joint) -> Answered:
        try:
            if joint.members < request.group.size:
                await asyncio.sleep(GATHER_SECONDS)
            return await self._ask(request, joint.close)
        finally:
            joint.close()
            if self._open.get(request.group.id) is joint:
                del self._open[request.group.id]

    async def close(self) -> None:
        """Drop what is under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def shared_usage(usage: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """One response's usage in `count` parts whose sum it is."""
    if count <= 1:
        return [dict(usage)]
    parts: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, value in usage.items():
        for number, part in enumerate(parts):
            whole = isinstance(value, int)
            part[name] = value // count + (number < value % count) if whole else value / count
    return parts
