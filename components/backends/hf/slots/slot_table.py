"""Which sequence has which slot on CUDA, and what decode steps read of every slot."""

import heapq
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from components.backends.hf.slots.sequences import ActiveSequence
from components.backends.hf.slots.upload import upload

_UNKNOWN = object()  # neither a sequence nor none


class SlotTable:
    """Slots, and their pages and positions on the device.

    A decode step computes the first slots of the table, with or without a sequence in them. A slot
    without one writes to the scratch page.
    """

    def __init__(self, slots: int, width: int, scratch_page: int, device: torch.device) -> None:
        """A sequence has at most `width` pages; nobody reads `scratch_page`."""
        self.slots = slots
        self.pages = torch.full((slots, width), scratch_page, dtype=torch.int32, device=device)
        self.positions = torch.zeros(slots, dtype=torch.int64, device=device)  # cached tokens
        # In which order a kernel starts on the slots, see `_order`.
        self.order = torch.arange(slots, dtype=torch.int32, device=device)
        self.slot_of: dict[ActiveSequence, int] = {}
        self._scratch_page = scratch_page
        self._device = device
        self._free = list(range(slots))  # a heap: the lowest slots are taken first
        self._on_device: Sequence[object] = [None] * slots  # sequences, or none, by slot
        self._num_pages_written = [0] * slots  # how many of a sequence's pages `pages` has

    def take(self, active: ActiveSequence) -> None:
        """Give a sequence the lowest free slot."""
        self.slot_of[active] = heapq.heappop(self._free)

    def take_back(self) -> None:
        """Free the slots of sequences that were removed."""
        for active in [active for active in self.slot_of if active.removed]:
            heapq.heappush(self._free, self.slot_of.pop(active))

    def of(self, sequences: Sequence[ActiveSequence]) -> Tensor:
        """The slots of sequences, on the device."""
        return upload(np.array([self.slot_of[active] for active in sequences]), self._device)

    def compact(self, bucket: int) -> Tensor | None:
        """Move sequences into the first `bucket` slots.

        Returns:
            Old and new slot of every move, int64 [2, moves]; None if there are none.
        """
        late = [(slot, active) for active, slot in self.slot_of.items() if slot >= bucket]
        if not late:
            return None
        moves = [(slot, heapq.heappop(self._free), active) for slot, active in late]
        for old, new, active in moves:
            heapq.heappush(self._free, old)
            self.slot_of[active] = new
        return upload(np.array([move[:2] for move in moves]).T.copy(), self._device)

    def update(self, sequences: Sequence[ActiveSequence]) -> list[tuple[ActiveSequence, int]]:
        """Write what the next steps read.

        Returns:
            The sequences that are new in their slots.
        """
        target: list[ActiveSequence | None] = [None] * self.slots
        for active in sequences:
            target[self.slot_of[active]] = active
        changed = [s for s in range(self.slots) if self._on_device[s] is not target[s]]
        self._write_pages(sequences, changed, [s for s in changed if target[s] is None])
        if changed:
            computed = np.array([0 if held is None else held.cached.computed for held in target])
            self.positions.copy_(upload(computed, self._device))
            self.order.copy_(upload(_order(target, computed), self._device))
        self._on_device = target
        return [(new, slot) for slot in changed if (new := target[slot]) is not None]

    def _write_pages(
        self, sequences: Sequence[ActiveSequence], changed: list[int], emptied: list[int]
    ) -> None:
        if emptied:  # they are computed in every step, so none of their pages may be in use
            self.pages[upload(np.array(emptied), self._device)] = self._scratch_page
        for slot in changed:
            self._num_pages_written[slot] = 0
        cells: list[tuple[int, int, int]] = []
        for active in sequences:
            slot, pages = self.slot_of[active], active.cached.pages
            cells += [(slot, n, pages[n]) for n in range(self._num_pages_written[slot], len(pages))]
            self._num_pages_written[slot] = len(pages)
        if cells:
            places = upload(np.array(cells).T.copy(), self._device)
            self.pages[places[0], places[1]] = places[2].to(torch.int32)

    def rewrite(self) -> None:
        """Let the next `update` write every slot anew, also those that have lost their sequence."""
        self._on_device = [_UNKNOWN] * self.slots

    def empty(self) -> None:
        """Let every slot, on the device, be without a sequence."""
        self.pages.fill_(self._scratch_page)
        self.positions.zero_()
        self._order_by_slot()

    def fill(self, sequences: int, context: int, page_size: int) -> None:
        """Let the first slots hold sequences of `context` tokens in their own pages: a benchmark.

        There must be no sequences.
        """
        used = -(-context // page_size) + 1
        pages = torch.arange(sequences * used, device=self._device) % self._scratch_page
        self.pages[:sequences, :used] = pages.view(sequences, used).to(torch.int32)
        self.positions.fill_(context)
        self._order_by_slot()

    def _order_by_slot(self) -> None:
        self.order.copy_(torch.arange(self.slots, dtype=torch.int32, device=self._device))


def _order(slots: Sequence[ActiveSequence | None], computed: np.ndarray) -> np.ndarray:
    """In which order a kernel starts on the slots, int32 [slots].

    Sequences that share their first page come one after another, so that the pages that they have
    in common are read from memory once and from the GPU's own cache after that. The groups with
    the longest sequences come first, which fills the GPU best.
    """
    first = np.array([held.cached.pages[0] if held and held.cached.pages else -1 for held in slots])
    _, group = np.unique(first, return_inverse=True)
    longest = np.zeros(group.max() + 1, dtype=computed.dtype)
    np.maximum.at(longest, group, computed)
    return np.lexsort((-computed, group, -longest[group])).astype(np.int32)
