"""What a model implements whose rows carry more from token to token than keys and values."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from torch import nn

# What one row carries, by layer: empty before its first token, then the model's own business.
Carried = dict[int, Any]


@runtime_checkable
class CarryingModel(Protocol):
    """A model that decodes in slots with what its rows carry, beside their pages.

    What it computes for a token may hang on the calls that read the tokens before it, so a prompt
    is read in one call, and every later token in a call of its own.
    """

    @property
    def carries(self) -> bool:
        """Whether it does so as it is set; else rows are read as those of any other model."""

    @property
    def carried_bytes(self) -> int:
        """What a row carries at most."""

    def carrying(self, rows: Sequence[Carried]) -> AbstractContextManager[None]:
        """Until it is left, calls of this thread read the next tokens of these rows.

        A call is [1, tokens]: as many tokens of every row, one row after another. It changes what
        the rows carry. A row must not depend on the others.
        """


def carries(model: nn.Module) -> bool:
    """Whether rows of a model carry more than keys and values."""
    return isinstance(model, CarryingModel) and model.carries
