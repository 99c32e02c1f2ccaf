"""Banks of memory tokens, whole or as low-rank factors, divided into chapters."""

import torch
from torch import Tensor, nn

from components.models.memory.quantized_rows import dequantize_rows, stored_columns
from components.models.memory.settings import MemorySettings


class MemoryBank(nn.Module):
    """Learned memory tokens [tokens, width].

    Stored as they are (`memory`), or as factors: `A` [tokens, rank] and `B` [width, rank] with
    memory = A @ B.T. Each may be quantized: `quantized_<name>` and `<name>_scales` stand for it
    then, and only the rows that are read become numbers again.
    """

    def __init__(self, settings: MemorySettings) -> None:
        super().__init__()
        tokens, rank = settings.num_memory_tokens, settings.memory_rank
        self.factorized = settings.use_low_rank_memory and not settings.reduced
        self.bits = settings.memory_quant_bits if settings.quantize_memory else None
        if self.factorized:
            self._store("A", tokens, rank)
            self._store("B", settings.token_width, rank)
        else:
            self._store("memory", tokens, settings.token_width)

    def forward(self, rows: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """Some or all memory tokens [..., width]; of factors, only the rows asked for are made.

        `dtype` is what they are wanted in; None: as they are stored, float32 if quantized.
        """
        if not self.factorized:
            return self._read("memory", rows, dtype)
        return self._read("A", rows, dtype) @ self._read("B", None, dtype).T

    def _store(self, name: str, rows: int, columns: int) -> None:
        if self.bits is None:
            self.register_parameter(name, nn.Parameter(torch.empty(rows, columns)))
            return
        kind = torch.int8 if self.bits == 8 else torch.uint8
        stored = torch.zeros(rows, stored_columns(columns, self.bits), dtype=kind)
        self.register_buffer(f"quantized_{name}", stored)
        self.register_buffer(f"{name}_scales", torch.ones(rows, 1))

    def _read(self, name: str, rows: Tensor | None, dtype: torch.dtype | None) -> Tensor:
        if self.bits is None:
            matrix: Tensor = getattr(self, name)
            chosen = matrix if rows is None else matrix[rows]
            return chosen if dtype is None else chosen.to(dtype)
        stored, scales = getattr(self, f"quantized_{name}"), getattr(self, f"{name}_scales")
        if rows is not None:
            stored, scales = stored[rows], scales[rows]
        return dequantize_rows(stored, scales, dtype or torch.float32)


class ChapteredBank(nn.Module):
    """A bank whose tokens are chapters of equal length: chapter c has rows c * T to (c + 1) * T."""

    def __init__(self, settings: MemorySettings) -> None:
        super().__init__()
        self.base_bank = MemoryBank(settings)
        self.length = settings.num_memory_tokens // settings.num_chapters

    def forward(self, chapters: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """The tokens of chapters [...]: [..., length, width], in `dtype` if it is given."""
        inside = torch.arange(self.length, device=chapters.device)
        tokens: Tensor = self.base_bank(chapters[..., None] * self.length + inside, dtype)
        return tokens


def bank_of(settings: MemorySettings) -> nn.Module:
    """A bank, with chapters where the settings ask for them."""
    return ChapteredBank(settings) if settings.use_chapters else MemoryBank(settings)
