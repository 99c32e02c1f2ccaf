"""Models with a recurrent state: slots hold a state of fixed size in place of pages.

A state cannot be cut back to a shorter prefix. A sequence therefore reuses what an ended one left
only if that one's ids are all a prefix of its own, as in a second pass; otherwise it is computed
from its start.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from components.backends.hf.slots.pages import Copy
from components.backends.hf.slots.sequences import ActiveSequence, DrawnTokens
from components.backends.hf.slots.torch_steps import TorchSteps
from components.decoding.recurrent_model import StateShape


class StateCache:
    """States of sequences: for every tensor of a state one [count, *shape]."""

    def __init__(self, shapes: Sequence[StateShape], count: int, device: torch.device) -> None:
        self.states = [
            torch.zeros(count, *each.shape, dtype=each.dtype, device=device) for each in shapes
        ]

    def wipe(self, places: Sequence[int]) -> None:
        """Set states to that before the first token."""
        for state in self.states:
            state[torch.tensor(places, dtype=torch.int64, device=state.device)] = 0

    def clear(self) -> None:
        """Free all memory."""
        self.states = []


class RecurrentSteps(TorchSteps):
    """Steps of a `RecurrentModel`. A sequence's only page is the place of its state."""

    def __init__(self, model: Any, cache: StateCache, allowed: Tensor) -> None:
        """`allowed`: bool [vocabulary], True for ids that the tokenizer has."""
        super().__init__(model, None, allowed)
        self._states = cache
        self._parallel = False

    def prefill(self, chunks: Sequence[tuple[ActiveSequence, int]]) -> DrawnTokens | None:
        """As `Steps.prefill`; every sequence is read by itself, so none is padded."""
        complete: list[ActiveSequence] = []
        logits: list[Tensor] = []
        for active, count in chunks:
            cached = active.cached
            place, start = cached.pages[0], cached.computed
            if start == 0:
                self._states.wipe([place])
            ids = torch.tensor([cached.ids[start : start + count]], device=self._device)
            positions = torch.arange(start, start + count, device=self._device)[None]
            own = [state[place : place + 1] for state in self._states.states]
            last = self._advance(ids, positions, own)
            cached.computed += count
            if not active.num_uncomputed:
                complete.append(active)
                logits.append(last)
        return self._draw(torch.cat(logits), complete) if complete else None

    def decode(self, sequences: Sequence[ActiveSequence], steps: int) -> DrawnTokens:
        """As `Steps.decode`; `steps` is 1."""
        for active in sequences:  # a sequence of one id decodes without a prefill
            if active.cached.computed == 0:
                self._states.wipe([active.cached.pages[0]])
        places = torch.tensor([active.cached.pages[0] for active in sequences], device=self._device)
        ids = torch.tensor([[active.cached.ids[-1]] for active in sequences], device=self._device)
        positions = [[len(active.cached.ids) - 1] for active in sequences]
        gathered = [state[places] for state in self._states.states]
        logits = self._advance(ids, torch.tensor(positions, device=self._device), gathered)
        for state, updated in zip(self._states.states, gathered, strict=True):
            state[places] = updated
        for active in sequences:
            active.cached.computed += 1
        return self._draw(logits, sequences)

    def copy(self, copies: Sequence[Copy]) -> None:
        """Never called: a part of a state cannot be copied."""
        assert not copies

    def wipe(self, pages: Sequence[int], count: int) -> None:
        """Set states to that before the first token."""
        self._states.wipe(pages)

    def clear(self) -> None:
        """Free all memory."""
        self._states.clear()

    def _advance(self, ids: Tensor, positions: Tensor, states: Sequence[Tensor]) -> Tensor:
        with torch.inference_mode():
            logits: Tensor = self._model.advance(ids, positions, states)
        return logits.float()


def most_states(shapes: Sequence[StateShape], slots: int, room: int) -> int:
    """States to allocate: two for every slot, since ended sequences keep theirs, if they fit.

    Raises:
        MemoryError: not even one state fits.
    """
    each = sum(shape.bytes for shape in shapes)
    count = min(2 * slots, room // each)
    if count < 1:
        raise MemoryError(f"a state of {each} bytes does not fit into memory")
    return count
