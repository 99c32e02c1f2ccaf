"""What a model with a recurrent state implements so that decoders can hold its state."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class StateShape:
    """One tensor of a sequence's state; it is zero before the first token."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32

    @property
    def bytes(self) -> int:
        """Bytes for one sequence."""
        return int(torch.Size(self.shape).numel()) * self.dtype.itemsize


@runtime_checkable
class RecurrentModel(Protocol):
    """What a model implements to be decoded in slots by its state."""

    def state_shapes(self) -> Sequence[StateShape]:
        """The tensors of one sequence's state, such as one for every layer."""

    def advance(self, input_ids: Tensor, positions: Tensor, states: Sequence[Tensor]) -> Tensor:
        """Read the next tokens of n sequences, updating their states in place.

        Args:
            input_ids: int64 [n, tokens], as many of every sequence and without padding.
            positions: of these tokens in their sequences, int64 [n, tokens].
            states: for every `StateShape` a tensor [n, *shape].

        Returns:
            Raw logits [n, vocabulary] after the last token. A row must not depend on the others.
        """
