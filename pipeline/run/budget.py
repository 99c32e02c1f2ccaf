"""`run.budget`: money is set aside before a request is sent, so that the limit is never passed."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from io import FileIO
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

from pipeline.protocols import Generation, Request
from pipeline.store.files import append, encode, write_atomically

RESERVED = "reserved.jsonl"


class BudgetSpentError(RuntimeError):
    """The next request could pass `run.budget`: the trace ends unfinished, which is no failure."""


@runtime_checkable
class Priced(Protocol):
    """A backend that knows what a request can cost."""

    def priced(self) -> bool:
        """Whether its model has a price."""

    def worst_cost(self, request: Request) -> float:
        """The most that `request` can cost, in USD: its prompt and every token of its cap."""

    def may_have_paid(self, request: Request) -> bool:
        """Whether a request whose call was cancelled may be charged.

        What was said to its `spending` is counted anyway.
        """


class Reserved:
    """What may have been paid although no row and no journal says so, kept in the run folder.

    A line is written before a request is sent, with the most that it can cost in USD, and another
    one when it is known what it cost beyond what its generation says. After a kill the first line
    stands alone, and counts.
    """

    def __init__(self, path: Path, usd: float) -> None:
        """`usd` is what earlier attempts left in the file at `path`."""
        self._path, self.usd = path, usd
        self._file: FileIO | None = None
        self._num_asked = 0

    @classmethod
    def read(cls, path: Path) -> Self:
        """What earlier attempts left; the file is shortened to one line that says it."""
        open_usd: dict[int, float] = {}
        for line in path.read_bytes().splitlines() if path.exists() else ():
            try:
                record = json.loads(line)
                open_usd[record["request"]] = float(record["usd"])
            except (ValueError, TypeError, KeyError):
                continue  # the torn last line of a killed process: its request was not sent yet
        usd = sum(open_usd.values())
        if open_usd:
            write_atomically(path, [encode({"request": 0, "usd": usd})])
        return cls(path, usd)

    def ask(self, usd: float) -> int:
        """Note that a request of at most `usd` is about to be sent; its number."""
        self._num_asked += 1
        self._write(self._num_asked, usd)
        return self._num_asked

    def settle(self, number: int, usd: float) -> None:
        """Note what a request cost, or may have, beyond what its generation says."""
        self._write(number, usd)

    def _write(self, number: int, usd: float) -> None:
        if self._file is None:
            self._file = FileIO(self._path, "ab")
        append(self._file, encode({"request": number, "usd": usd}))

    def close(self) -> None:
        """Shorten the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
            if Reserved.read(self._path).usd == 0:
                self._path.unlink(missing_ok=True)


class Budget:
    """What may still be spent, in USD. `limit` None: anything."""

    def __init__(
        self, limit: float | None, spent: float = 0.0, reserved: Reserved | None = None
    ) -> None:
        """`spent` is what rows and journal of earlier attempts say, `reserved` what they do not."""
        self.limit = limit
        self.spent = spent + (reserved.usd if reserved else 0.0)
        self.exhausted = False
        self._reserved = reserved
        self.set_aside = 0.0
        self._changed = asyncio.Condition()

    def close(self) -> None:
        """Close the file in the run folder."""
        if self._reserved is not None:
            self._reserved.close()

    @asynccontextmanager
    async def aside(self, backend: Any, request: Request) -> AsyncIterator["Account"]:
        """Set the request's worst cost aside while it is under way.

        What it really cost is read from the generations put into the account; the worst counts
        where they do not say, and where a request was given up that may be charged all the same.
        Waits where others under way may leave enough.

        Raises:
            BudgetSpentError: not even all that is left covers the request.
        """
        if self.limit is None:
            yield Account(request, [])
            return
        worst = backend.worst_cost(request)
        await self.take(worst)
        spending = _SetAside(self, worst, self._reserved)
        account = Account(dataclasses.replace(request, spending=spending), [])
        made, beyond = account.generations, 0.0
        try:
            yield account
            beyond = worst * sum(one.backend_columns.get("cost_usd") is None for one in made)
        except asyncio.CancelledError:
            beyond = worst if backend.may_have_paid(request) else 0.0
            raise
        finally:
            spending.close(beyond, [generation.backend_columns for generation in made])
            await self.changed()

    async def take(self, worst: float) -> None:
        """Set `worst` aside, once what is under way leaves enough."""
        assert self.limit is not None
        async with self._changed:
            while self.spent + self.set_aside + worst > self.limit:
                if self.spent + worst > self.limit:
                    self.exhausted = True
                    raise BudgetSpentError(self.sentence())
                await self._changed.wait()
            self.set_aside += worst

    async def changed(self) -> None:
        """Let those who wait for money look again."""
        async with self._changed:
            self._changed.notify_all()

    def sentence(self) -> str:
        """What to tell the user."""
        return (
            f"run.budget of {self.limit} USD: {self.spent:.4f} USD are spent and the next request "
            "could pass it; run again with a larger run.budget to go on"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Account:
    """A request to send, and the list into which its generation is put."""

    request: Request
    generations: list[Generation]


class _SetAside:
    """The money of one request: its worst cost while it is under way, and what was discarded."""

    def __init__(self, budget: Budget, worst: float, reserved: Reserved | None) -> None:
        self._budget, self._worst, self._reserved = budget, worst, reserved
        self._discarded = 0.0
        self._held = worst
        self._closed = False
        self._number = reserved.ask(worst) if reserved else 0

    def discarded(self, usd: float) -> None:
        """Count an answer without a use at once: the next attempt may be paid as well."""
        if self._closed:
            return
        self._discarded += usd
        self._budget.spent += usd
        self._note(self._worst + self._discarded)

    async def renew(self) -> None:
        """Wait until the budget covers the worst cost once more.

        Nothing is held meanwhile, so that two that wait do not wait for each other.
        """
        self._budget.set_aside -= self._held
        self._held = 0.0
        await self._budget.changed()
        await self._budget.take(self._worst)
        self._held = self._worst

    def close(self, beyond: float, columns: list[dict[str, Any]]) -> None:
        """Give back what was set aside.

        `columns` are those of the generations, which say what was discarded as well; `beyond` is
        what they do not say.
        """
        self._closed = True
        self._budget.set_aside -= self._held
        told = self._discarded if columns else 0.0
        self._budget.spent += beyond + cost_of(columns) - told
        self._note(beyond + self._discarded - told)

    def _note(self, usd: float) -> None:
        if self._reserved is not None:
            self._reserved.settle(self._number, usd)


def cost_of(records: Iterable[dict[str, Any]]) -> float:
    """Sum of what backend columns, passes or rows say was paid, discarded answers included."""
    names = ("cost_usd", "discarded_usd")
    return sum(record.get(name) or 0.0 for record in records for name in names)
