"""`run.budget`: money is set aside before a request is sent, so that the limit is never passed."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Protocol, runtime_checkable

from pipeline.protocols import Generation, Request


class BudgetSpentError(RuntimeError):
    """The next request could pass `run.budget`: the trace ends unfinished, which is no failure."""


@runtime_checkable
class Priced(Protocol):
    """A backend that knows what a request can cost."""

    def priced(self) -> bool:
        """Whether its model has a price."""

    def worst_cost(self, request: Request) -> float:
        """The most that `request` can cost, in USD: its prompt and every token of its cap."""


class Budget:
    """What may still be spent, in USD. `limit` None: anything."""

    def __init__(self, limit: float | None, spent: float = 0.0) -> None:
        """`spent` is what earlier attempts paid."""
        self.limit, self.spent = limit, spent
        self.exhausted = False
        self._aside = 0.0
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def aside(self, backend: Any, request: Request) -> AsyncIterator[list[Generation]]:
        """Set the request's worst cost aside while it is under way.

        What it really cost is read from the generation put into the list that is handed out. Waits
        where others under way may leave enough.

        Raises:
            BudgetSpentError: not even all that is left covers the request.
        """
        made: list[Generation] = []
        if self.limit is None:
            yield made
            return
        worst = backend.worst_cost(request)
        await self._take(worst)
        try:
            yield made
        finally:
            self._aside -= worst
            self.spent += sum(cost_of([generation.backend_columns]) for generation in made)
            async with self._changed:
                self._changed.notify_all()

    async def _take(self, worst: float) -> None:
        assert self.limit is not None
        async with self._changed:
            while self.spent + self._aside + worst > self.limit:
                if self.spent + worst > self.limit:
                    self.exhausted = True
                    raise BudgetSpentError(self.sentence())
                await self._changed.wait()
            self._aside += worst

    def sentence(self) -> str:
        """What to tell the user."""
        return (
            f"run.budget of {self.limit} USD: {self.spent:.4f} USD are spent and the next request "
            "could pass it; run again with a larger run.budget to go on"
        )


def cost_of(records: Iterable[dict[str, Any]]) -> float:
    """Sum of the `cost_usd` of backend columns, passes or rows."""
    return sum(record.get("cost_usd") or 0.0 for record in records)
