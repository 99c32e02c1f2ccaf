"""Which chapters of memory are read: the inference routers and their factory.

A router scores chapters from pooled hidden states with the trained linear layer. Padding is masked,
shared chapters are always read and never routed to, and routed weights carry the scaling factor.

Only token routing and a prefill make cached decoding equal to one full forward pass by definition:
with `sequence` and `sequence-rolling` a decoded token is routed on itself alone, with `rolling` and
`hybrid` on the window that ends with it, while one full pass routes all tokens on one pool.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from components.models.memory.settings import STRATEGIES, MemorySettings
from pipeline.spec import SpecError


class Selection(NamedTuple):
    """Chapters read, shared ones first, then routed ones by descending weight; weights sum to 1.

    Both are [batch, chapters], or [batch, time, chapters] from a token router.
    """

    chapters: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True)
class Choice:
    """How many chapters are read: `top_k` routed ones besides `shared` ones, the first."""

    top_k: int
    shared: int = 0
    scale: float = 1.0

    @classmethod
    def of(cls, settings: MemorySettings) -> "Choice":
        """What a model's settings say."""
        return cls(
            settings.top_k_chapters, settings.num_shared_chapters, settings.routed_scaling_factor
        )

    def routed(self, scores: Tensor) -> Selection:
        """The `top_k` best of the chapters that are not shared, from scores [..., chapters].

        Probabilities are taken without the shared chapters; the weights of the best sum to 1.
        """
        open_to_all = scores.float().clone()
        open_to_all[..., : self.shared] = -torch.inf
        weights, chapters = open_to_all.softmax(-1).topk(self.top_k, dim=-1)
        return Selection(chapters, weights / weights.sum(-1, keepdim=True))

    def joined(self, routed: Selection) -> Selection:
        """Shared chapters with weight 1 each in front of scaled routed ones, summing to 1."""
        if not self.shared:
            return routed
        shape = (*routed.chapters.shape[:-1], self.shared)
        first = torch.arange(self.shared, device=routed.chapters.device).expand(shape)
        weights = torch.cat(
            (torch.ones_like(first, dtype=torch.float32), routed.weights * self.scale), -1
        )
        chapters = torch.cat((first, routed.chapters), -1)
        return Selection(chapters, weights / weights.sum(-1, keepdim=True))


class Window(NamedTuple):
    """The last hidden states of every row [batch, length, width], and which of them are tokens."""

    states: Tensor
    mask: Tensor

    def mean(self) -> Tensor:
        """Mean of a row's tokens [batch, width]."""
        mask = self.mask.unsqueeze(-1).to(self.states.dtype)
        return (self.states * mask).sum(1) / mask.sum(1).clamp(min=1)

    def last(self, size: int) -> "Window":
        """The last `size` tokens of every row, wherever its padding stands."""
        places = torch.arange(self.mask.shape[1], device=self.mask.device)
        order = torch.where(self.mask, places, -1).argsort(dim=1)[:, -size:]
        states = self.states.gather(1, order.unsqueeze(-1).expand(-1, -1, self.states.shape[-1]))
        return Window(states, self.mask.gather(1, order))

    def then(self, other: "Window") -> "Window":
        """This window followed by another of the same rows."""
        return Window(
            torch.cat((self.states, other.states), 1), torch.cat((self.mask, other.mask), 1)
        )

    def rows(self, indices: Tensor) -> "Window":
        """Some of the rows, in the order of `indices`."""
        return Window(self.states[indices], self.mask[indices])


class SequenceLevelRouter:
    """Routes a row on the mean of all tokens that it is given."""

    def __init__(self, router: nn.Linear, choice: Choice) -> None:
        _check(router, choice)
        self.router, self.choice = router, choice

    def route(self, states: Tensor, mask: Tensor | None = None) -> Selection:
        """Chapters of every row from hidden states [batch, time, width]; `mask` tells tokens."""
        return self.choice.joined(self.choice.routed(self.router(_window(states, mask).mean())))


class SequenceRollingRouter:
    """Routes a row on the mean, over its tokens, of the mean of the window that ends with each.

    That gives more weight to a row's first tokens than `SequenceLevelRouter`, and less to its last.
    """

    def __init__(self, router: nn.Linear, choice: Choice, window_size: int = 128) -> None:
        _check(router, choice, window_size)
        self.router, self.choice, self.window_size = router, choice, window_size

    def route(self, states: Tensor, mask: Tensor | None = None) -> Selection:
        """Chapters of every row from hidden states [batch, time, width]; `mask` tells tokens."""
        tokens = _window(states, mask).last(states.shape[1])  # a row's tokens, one after another
        weights = self._weights(tokens.mask).to(states.dtype)
        pooled = (tokens.states * weights.unsqueeze(-1)).sum(1)
        return self.choice.joined(self.choice.routed(self.router(pooled)))

    def _weights(self, mask: Tensor) -> Tensor:
        """How much each token counts [batch, time]; the weights of a row sum to 1.

        A token is in the windows that end with it and with the next `window_size` - 1 tokens.
        """
        length = mask.shape[1]
        shares = mask.double() / mask.cumsum(1).clamp(1, self.window_size)  # in the window's mean
        sums = torch.nn.functional.pad(shares.cumsum(1), (1, 0))
        ends = (torch.arange(length, device=mask.device) + self.window_size).clamp(max=length)
        return (sums[:, ends] - sums[:, :-1]) * mask / mask.sum(1, keepdim=True).clamp(min=1)


class RollingWindowRouter:
    """Routes a row on the mean of its last `window_size` tokens, of earlier calls too."""

    def __init__(self, router: nn.Linear, choice: Choice, window_size: int = 128) -> None:
        _check(router, choice, window_size)
        self.router, self.choice, self.window_size = router, choice, window_size
        self.cache: Window | None = None

    def route(
        self, states: Tensor, mask: Tensor | None = None, use_cache: bool = True
    ) -> Selection:
        """Chapters of every row; without `use_cache` the window is neither read nor kept."""
        window = _window(states, mask)
        if use_cache and self.cache is not None:
            window = self.cache.then(window)
        window = window.last(self.window_size)
        if use_cache:
            self.cache = window
        return self.choice.joined(self.choice.routed(self.router(window.mean())))

    def reset_cache(self) -> None:
        """Forget the window; a new generation starts."""
        self.cache = None


class TokenLevelRouter:
    """Routes every token on itself alone."""

    def __init__(self, router: nn.Linear, choice: Choice) -> None:
        _check(router, choice)
        self.router, self.choice = router, choice

    def route(self, states: Tensor, mask: Tensor | None = None) -> Selection:
        """Chapters of every token: [batch, time, chapters]; padding is routed too, unread."""
        return self.choice.joined(self.choice.routed(self.router(states)))


class HybridRouter:
    """Routes a prompt on all of its tokens, then on the window that ends with the latest."""

    def __init__(self, router: nn.Linear, choice: Choice, window_size: int = 128) -> None:
        self._sequence = SequenceLevelRouter(router, choice)
        self.rolling = RollingWindowRouter(router, choice, window_size)
        self.generating = False

    def route(self, states: Tensor, mask: Tensor | None = None) -> Selection:
        """Chapters of every row."""
        router = self.rolling if self.generating else self._sequence
        return router.route(states, mask)

    def start_generation(self, states: Tensor, mask: Tensor | None = None) -> None:
        """The prompt is over; its last window is where rolling begins."""
        self.rolling.cache = _window(states, mask).last(self.rolling.window_size)
        self.generating = True

    def reset(self) -> None:
        """A new sequence: route its prompt on all of its tokens."""
        self.rolling.reset_cache()
        self.generating = False


Router = (
    SequenceLevelRouter
    | SequenceRollingRouter
    | RollingWindowRouter
    | TokenLevelRouter
    | HybridRouter
)


def create_inference_router(
    router: nn.Linear, strategy: str, choice: Choice, window_size: int = 128
) -> Router:
    """The router of a strategy: sequence, sequence-rolling, rolling, token or hybrid.

    Raises:
        SpecError: another strategy, more chapters than there are, or no window.
    """
    if strategy == "sequence":
        return SequenceLevelRouter(router, choice)
    if strategy in ("sequence-rolling", "sequence_rolling"):
        return SequenceRollingRouter(router, choice, window_size)
    if strategy == "rolling":
        return RollingWindowRouter(router, choice, window_size)
    if strategy == "token":
        return TokenLevelRouter(router, choice)
    if strategy == "hybrid":
        return HybridRouter(router, choice, window_size)
    raise SpecError(f"model.routing must be one of {', '.join(STRATEGIES)}, got {strategy!r}")


def _check(router: nn.Linear, choice: Choice, window_size: int = 1) -> None:
    routed = router.out_features - choice.shared
    if not 0 < choice.top_k <= routed:
        raise SpecError(f"memory.top_k_chapters must be from 1 to {routed}, got {choice.top_k}")
    if window_size < 1:
        raise SpecError(f"memory.routing_window_size must be above 0, got {window_size}")


def _window(states: Tensor, mask: Tensor | None) -> Window:
    if mask is None:
        mask = torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
    return Window(states, mask.bool())
