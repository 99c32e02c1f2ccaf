"""Rows on their way through the decoder."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from components.backends.hf.slots.pages import Held, Wanted
from components.decoding.sequence import Decoded
from pipeline.protocols import Generation


@dataclass(slots=True, eq=False)
class Entry:
    """A row, who waits for it, and its place in the queue."""

    order: tuple[int, int]
    row: Decoded
    future: asyncio.Future[Generation]
    error: Exception | None = None
    wanted: Wanted | None = None  # its ids while it waits


@dataclass(slots=True, eq=False)
class Running:
    """A row that has pages. `ahead` ids are drawn, or will be, without being known here yet."""

    entry: Entry
    held: Held
    ahead: int = 0
    started: bool = False  # all ids but the last are computed: it decodes
    gone: bool = False  # lost its pages; what is still to come of it is not wanted

    @property
    def row(self) -> Decoded:
        """The row itself."""
        return self.entry.row

    @property
    def uncomputed(self) -> int:
        """Known ids without keys and values."""
        return max(0, len(self.held.ids) - self.held.computed)

    @property
    def drawn(self) -> int:
        """Index of the next id in its phase."""
        return len(self.row.token_ids) + self.ahead

    @property
    def exhausted(self) -> bool:
        """Whether its cap is reached by what is on the way."""
        return self.row.left <= self.ahead


@dataclass(frozen=True, slots=True)
class Drawn:
    """What steps gave: per step and row an id, its entropy and its logprob."""

    rows: Sequence[Running]
    tokens: list[list[int]]  # [steps][rows]
    entropies: list[list[float]]
    logprobs: list[list[float]]
