"""Given rows that begin alike are read once, such as the phases and passes of one trace."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from components.decoding.forced_rows import ForcedRows, Visit
from pipeline.protocols import ForcedTokens


@dataclass(slots=True)
class _Read:
    """A row that is read, and the rows (by number) whose ids are its beginning."""

    ids: list[int]
    members: list[int]


class SharedRows:
    """Reads with another reader, in which what follows an id does not change its logits."""

    def __init__(self, reader: ForcedRows) -> None:
        """`reader` reads each row that is not the beginning of another."""
        self.reader = reader

    def read(self, rows: Sequence[ForcedTokens], most_logits: int, visit: Visit) -> None:
        """As `ForcedRows.read`."""
        reads = _reads(rows)
        starts = [min(len(rows[number].prompt_ids) for number in read.members) for read in reads]
        merged = [
            ForcedTokens(read.ids[:start], read.ids[start:])
            for read, start in zip(reads, starts, strict=True)
        ]

        def passed_on(number: int, index: int, logits: Tensor) -> None:
            first = starts[number] + index  # the place of the id that the first logits predict
            for member in reads[number].members:
                start = len(rows[member].prompt_ids)
                end = start + len(rows[member].token_ids)
                low, high = max(first, start), min(first + len(logits), end)
                if low < high:
                    visit(member, low - start, logits[low - first : high - first])

        self.reader.read(merged, most_logits, passed_on)


def _reads(rows: Sequence[ForcedTokens]) -> list[_Read]:
    """The rows to be read: the longest ones, each with those that it begins with."""
    whole = {n: [*row.prompt_ids, *row.token_ids] for n, row in enumerate(rows) if row.token_ids}
    reads: list[_Read] = []
    for number in sorted(whole, key=lambda n: -len(whole[n])):
        ids = whole[number]
        longer = next((read for read in reads if read.ids[: len(ids)] == ids), None)
        if longer is None:
            reads.append(_Read(ids, [number]))
        else:
            longer.members.append(number)
    return reads
