"""Sequences that have a slot, and what decode steps return of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from components.backends.hf.slots.pages import CachedSequence
from components.backends.hf.submission import QueuedSequence
from components.decoding.carrying_model import Carried
from components.decoding.sequence import TokenSequence


@dataclass(slots=True, eq=False)
class ActiveSequence:
    """A sequence that has pages, and so a slot."""

    queued: QueuedSequence
    cached: CachedSequence
    in_flight: int = 0  # ids drawn on the device, or about to be, that the host does not know yet
    decoding: bool = False  # all ids but the last are computed
    removed: bool = False  # it lost its pages: ids that still arrive are not wanted
    carried: Carried = field(default_factory=dict)  # beside its pages, by a `CarryingModel`

    @property
    def sequence(self) -> TokenSequence:
        """The sequence itself."""
        return self.queued.sequence

    @property
    def num_uncomputed(self) -> int:
        """Known ids whose keys and values are not cached."""
        return max(0, len(self.cached.ids) - self.cached.computed)

    @property
    def next_index(self) -> int:
        """Index, in its phase, of the next id to draw."""
        return len(self.sequence.token_ids) + self.in_flight

    @property
    def exhausted(self) -> bool:
        """Whether the ids in flight reach its cap."""
        return self.sequence.num_remaining <= self.in_flight


@dataclass(frozen=True, slots=True)
class DrawnTokens:
    """Results of decode steps: for each step and sequence an id, its entropy and its logprob."""

    sequences: Sequence[ActiveSequence]
    tokens: list[list[int]]  # [steps][sequences]
    entropies: list[list[float]]  # nats
    logprobs: list[list[float]]
