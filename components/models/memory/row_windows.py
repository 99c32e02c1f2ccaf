"""Router windows of rows that join and leave a batch: each is kept with its row."""

from collections.abc import Sequence
from typing import Any

import torch

from components.models.memory.routing import Window


class RowWindows:
    """The windows of the rows of one call, by layer."""

    def __init__(self, rows: Sequence[dict[int, Any]]) -> None:
        """`rows`: for every row its `Window` of each layer; empty before its first token."""
        self._rows = rows

    def get(self, layer: int) -> Window | None:
        """The rows' windows as one, padded in front; None where no row has any."""
        kept: list[Window | None] = [row.get(layer) for row in self._rows]
        some = next((window for window in kept if window is not None), None)
        if some is None:
            return None
        longest = max(window.mask.shape[1] for window in kept if window is not None)
        empty = Window(some.states[:, :0], some.mask[:, :0])
        padded = [_padded(empty if window is None else window, longest) for window in kept]
        states, masks = zip(*padded, strict=True)
        return Window(torch.cat(states), torch.cat(masks))

    def __setitem__(self, layer: int, window: Window) -> None:
        """Give every row its own part."""
        for place, row in enumerate(self._rows):
            part = slice(place, place + 1)
            row[layer] = Window(window.states[part], window.mask[part])


def _padded(window: Window, length: int) -> Window:
    missing = length - window.mask.shape[1]
    if not missing:
        return window
    states = torch.nn.functional.pad(window.states, (0, 0, missing, 0))
    return Window(states, torch.nn.functional.pad(window.mask, (missing, 0)))
