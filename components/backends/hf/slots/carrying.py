"""Models whose rows carry more than keys and values: it stays with the row while it has a slot.

What is carried hangs on how a prompt was read, not on its ids alone. So a row neither takes over
pages of another nor lends its own, its prompt is read in one call, and a row that lost its pages is
computed again as it was at first: its prompt, then token by token.
"""

from collections.abc import Sequence

from components.backends.hf.slots.sequences import ActiveSequence, DrawnTokens
from components.backends.hf.slots.torch_steps import TorchSteps, joined


class CarryingSteps(TorchSteps):
    """Steps of a `CarryingModel`."""

    def _prefill(self, chunks: Sequence[tuple[ActiveSequence, int]]) -> DrawnTokens | None:
        parts = [self._read(active) for active, _ in chunks]
        return joined([part for part in parts if part is not None])

    def _read(self, active: ActiveSequence) -> DrawnTokens | None:
        """Read a row up to its end, and draw its next id."""
        drawn = None
        while active.num_uncomputed:
            count = 1 if active.cached.computed else len(active.sequence.prompt.ids)
            with self._model.carrying([active.carried]):
                drawn = super()._prefill([(active, count)])
        return drawn

    def _decode(self, sequences: Sequence[ActiveSequence]) -> DrawnTokens:
        with self._model.carrying([active.carried for active in sequences]):
            return super()._decode(sequences)
