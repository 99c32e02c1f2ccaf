"""Banks of memory tokens, whole or as low-rank factors, divided into chapters."""

import torch
from torch import Tensor, nn

from components.models.memory.settings import MemorySettings


class MemoryBank(nn.Module):
    """Learned memory tokens [tokens, width].

    Stored as they are (`memory`), or as factors: `A` [tokens, rank] and `B` [width, rank] with
    memory = A @ B.T.
    """

    def __init__(self, settings: MemorySettings) -> None:
        super().__init__()
        tokens, rank = settings.num_memory_tokens, settings.memory_rank
        self.factorized = settings.use_low_rank_memory and not settings.reduced
        if self.factorized:
            self.A = nn.Parameter(torch.empty(tokens, rank))
            self.B = nn.Parameter(torch.empty(settings.token_width, rank))
        else:
            self.memory = nn.Parameter(torch.empty(tokens, settings.token_width))

    def forward(self, rows: Tensor | None = None) -> Tensor:
        """Some or all memory tokens [..., width]; of factors, only the rows asked for are made."""
        stored = self.A if self.factorized else self.memory
        chosen = stored if rows is None else stored[rows]
        return chosen @ self.B.T if self.factorized else chosen


class ChapteredBank(nn.Module):
    """A bank whose tokens are chapters of equal length: chapter c has rows c * T to (c + 1) * T."""

    def __init__(self, settings: MemorySettings) -> None:
        super().__init__()
        self.base_bank = MemoryBank(settings)
        self.length = settings.num_memory_tokens // settings.num_chapters

    def forward(self, chapters: Tensor) -> Tensor:
        """The tokens of chapters [...]: [..., length, width]."""
        inside = torch.arange(self.length, device=chapters.device)
        tokens: Tensor = self.base_bank(chapters[..., None] * self.length + inside)
        return tokens


def bank_of(settings: MemorySettings) -> nn.Module:
    """A bank, with chapters where the settings ask for them."""
    return ChapteredBank(settings) if settings.use_chapters else MemoryBank(settings)
