"""Cross-attention of hidden states to memory tokens: no positions, no causal mask."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from components.models.memory.settings import MemorySettings


class MemoryAttention(nn.Module):
    """Queries from hidden states, keys and values from memory; grouped key-value heads.

    Projections are linear layers without bias, or pairs `<name>_down` [rank, in], `<name>_up`
    [out, rank].
    """

    def __init__(self, settings: MemorySettings) -> None:
        super().__init__()
        self.heads, self.kv_heads = settings.heads, settings.kv_heads
        self.size = settings.width // settings.heads
        narrow = self.kv_heads * self.size
        self.rank = settings.projection_rank if settings.use_low_rank_projections else None
        self._project("q", settings.hidden_size, settings.width)
        self._project("k", settings.token_width, narrow)
        self._project("v", settings.token_width, narrow)
        self._project("o", settings.width, settings.hidden_size)

    def _project(self, name: str, inputs: int, outputs: int) -> None:
        if self.rank is None:
            self.add_module(f"{name}_proj", nn.Linear(inputs, outputs, bias=False))
        else:
            self.add_module(f"{name}_down", nn.Linear(inputs, self.rank, bias=False))
            self.add_module(f"{name}_up", nn.Linear(self.rank, outputs, bias=False))

    def project(self, name: str, x: Tensor) -> Tensor:
        """One of the projections `q`, `k`, `v` and `o`."""
        if self.rank is None:
            projected: Tensor = self.get_submodule(f"{name}_proj")(x)
            return projected
        down = self.get_submodule(f"{name}_down")(x)
        raised: Tensor = self.get_submodule(f"{name}_up")(down)
        return raised

    def forward(self, hidden: Tensor, memory: Tensor) -> Tensor:
        """Attend from [batch, time, width] to [batch or 1, tokens, width] in one softmax."""
        queries = self._split(self.project("q", hidden), self.heads)
        mixed = self._attend(queries, *self.keys_and_values(memory))
        return self.project("o", self._join(mixed))

    def keys_and_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [batch, key-value heads, tokens, size] of memory tokens."""
        keys, values = (self.project(name, memory) for name in ("k", "v"))
        return self._split(keys, self.kv_heads), self._split(values, self.kv_heads)

    def by_token(
        self,
        hidden: Tensor,
        shared: Tensor | None,
        bank: nn.Module,
        chapters: Tensor,
        weights: Tensor,
    ) -> Tensor:
        """Every token attends to chapters of its own, each with a softmax of its own.

        Args:
            hidden: [batch, time, width].
            shared: tokens of the shared chapters [1, tokens, width], read by all in one softmax.
            bank: gives the tokens of chapters.
            chapters: routed chapters [batch, time, k].
            weights: what each chapter's output is multiplied by [batch, time, k].
        """
        queries = self._split(self.project("q", hidden), self.heads)
        flat = queries.transpose(1, 2).flatten(0, 1)  # [tokens, heads, size]
        mixed = torch.zeros_like(flat)
        for chapter in chapters.unique().tolist():
            token, slot = (chapters.flatten(0, 1) == chapter).nonzero(as_tuple=True)
            tokens = bank(torch.tensor([chapter], device=hidden.device), hidden.dtype)
            own = flat[token].transpose(0, 1).unsqueeze(0)  # [1, heads, tokens, size]
            part = self._attend(own, *self.keys_and_values(tokens))[0].transpose(0, 1)
            share = weights.flatten(0, 1)[token, slot].to(part.dtype)
            mixed.index_add_(0, token, part * share[:, None, None])
        mixed = mixed.view(*hidden.shape[:2], self.heads, self.size).transpose(1, 2)
        if shared is not None:
            mixed = mixed + self._attend(queries, *self.keys_and_values(shared))
        return self.project("o", self._join(mixed))

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        repeats = self.heads // self.kv_heads
        keys, values = (t.repeat_interleave(repeats, dim=1) for t in (keys, values))
        batch = queries.shape[0]
        keys, values = (t.expand(batch, -1, -1, -1) for t in (keys, values))
        return F.scaled_dot_product_attention(queries, keys, values)

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.unflatten(-1, (heads, self.size)).transpose(1, 2)

    def _join(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(2)
