"""What decode steps on a device read of every slot, also of those without a sequence."""

import asyncio
from typing import Any, cast

import pytest
import torch

from components.backends.hf.slots.pages import CachedSequence
from components.backends.hf.slots.sequences import ActiveSequence
from components.backends.hf.slots.slot_table import SlotTable
from components.backends.hf.submission import QueuedSequence
from tests.backends.hf.test_scheduler import row

SCRATCH = 99


def active(pages: list[int], computed: int) -> ActiveSequence:
    """A sequence of some pages."""
    ids = list(range(computed + 1))
    future = cast("asyncio.Future[Any]", None)  # of no use to the table
    queued = QueuedSequence((0, 0), row(ids, 0, 0, 9), future)
    return ActiveSequence(queued, CachedSequence(0, ids, pages, computed))


@pytest.mark.parametrize("anew", [False, True])
def test_a_slot_that_lost_its_sequence_points_to_the_scratch_page_also_when_all_is_written_anew(
    anew: bool,
) -> None:
    table = SlotTable(4, 3, SCRATCH, torch.device("cpu"))
    first, second = active([0, 1], 5), active([0, 2], 4)
    for each in (first, second):
        table.take(each)
    assert [each for each, _ in table.update([first, second])] == [first, second]
    assert table.pages[:2].tolist() == [[0, 1, SCRATCH], [0, 2, SCRATCH]]
    if anew:  # as a row with a repetition penalty has it done
        table.rewrite()
    # The first is past its cap; the host does not know its last ids yet, so it keeps its slot.
    assert [each for each, _ in table.update([second])] == ([second] if anew else [])
    assert table.pages[0].tolist() == 3 * [SCRATCH], "a step would write into the page they share"
    assert table.pages[1].tolist() == [0, 2, SCRATCH]
    assert table.positions.tolist()[:2] == [0, 4]
