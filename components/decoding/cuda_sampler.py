"""The sampler on CUDA: entropy, logprob and an exact draw for every row, in four launches."""

import torch
import triton
from torch import Tensor

from components.decoding.kernels.conclude import conclude, weigh
from components.decoding.kernels.row import CHUNK, FACTS, LANES
from components.decoding.kernels.scan import scan
from components.decoding.kernels.settle import HEAP, settle

_BLOCKS = 2048  # blocks that fill a card of some 130 multiprocessors evenly
_SPLITS = (4, 8, 16)


class FusedSampler:
    """Draws what `race.draw` draws from the same logits, and measures what `observe` does.

    Nothing is allocated after construction and nothing waits for the host, so a call can be
    captured in a CUDA graph once it has run before. Columns are written in place by the owner, at
    any time before a step: `temperature`, `top_p`, `min_p`, `repetition_penalty` (float32),
    `seeds`, `indices`, `top_k` (int64), each [rows], and `seen` (see `note`). Results are written
    in place: `tokens` (int64), `entropies` and `logprobs` (float32), each [rows], of raw logits.
    """

    def __init__(
        self, rows: int, vocabulary: int, device: torch.device, bound: int, penalises: bool
    ) -> None:
        """Allocate for up to `rows` rows.

        Args:
            rows: most rows of a call.
            vocabulary: logits of a row.
            device: a CUDA device.
            bound: ids from here on are never drawn; they count in entropy and logprob.
            penalises: whether some row may ever have a repetition penalty, which costs time.
        """
        self.vocabulary = vocabulary
        self.bound = min(bound, vocabulary)
        self.penalises = penalises
        self._numbers = torch.ones(4, rows, device=device)
        self.temperature, self.top_p, self.min_p, self.repetition_penalty = self._numbers
        self.min_p.zero_()
        self._counts = torch.zeros(3, rows, dtype=torch.int64, device=device)
        self.seeds, self.indices, self.top_k = self._counts
        words = triton.cdiv(vocabulary, 32) if penalises else 1
        self.seen = torch.zeros(rows if penalises else 1, words, dtype=torch.int32, device=device)
        self.tokens = torch.zeros(rows, dtype=torch.int64, device=device)
        self.entropies = torch.zeros(rows, device=device)
        self.logprobs = torch.zeros(rows, device=device)
        lanes = int(LANES) * max(count * _splits(count) for count in range(1, rows + 1))
        self._lanes = torch.empty(3 * lanes, device=device)
        self._listed = torch.empty(lanes, dtype=torch.int32, device=device)
        self._sums = torch.empty(3 * lanes // int(LANES), device=device)
        self._facts = torch.empty(rows, int(FACTS), device=device)
        self._states = torch.empty(rows, int(FACTS), dtype=torch.int32, device=device)
        self._heap = torch.empty(rows, int(HEAP), device=device)
        self._heap_mass = torch.empty_like(self._heap)
        self._heap_ids = torch.empty(rows, int(HEAP), dtype=torch.int32, device=device)

    def __call__(self, logits: Tensor) -> None:
        """Draw for the first rows: `logits` is [some rows, vocabulary], float32 or bfloat16.

        Raises:
            ValueError: the logits' shape, type or layout does not fit.
        """
        self._check(logits)
        count, width = len(logits), 16 // logits.element_size()
        splits, tile = _splits(count), int(LANES) * width
        tiles = triton.cdiv(triton.cdiv(self.vocabulary, tile), splits)
        columns = (self._numbers, self._counts, len(self.tokens), self.seen, self.seen.shape[1])
        row = (logits, logits.stride(0), *columns)
        results = (self.tokens, self.entropies, self.logprobs)
        kind = {"SPLITS": splits, "PENALISES": self.penalises}
        lanes = {"WIDTH": width, **kind}
        span = triton.next_power_of_2(tiles * width)
        kept = (self._facts, self._states)
        heap = (self._listed, self._heap, self._heap_ids, self._heap_mass)
        scan[splits, count](
            *row, self._lanes, self._sums, self.vocabulary, self.bound, tiles, **lanes
        )
        settle[count,](
            *row, self._lanes, self._sums, *kept, *heap, *results, self.bound, tiles,
            SPAN=span, **lanes, num_warps=8,
        )  # fmt: skip
        chunks = triton.cdiv(triton.cdiv(self.bound, int(CHUNK)), splits)
        weigh[splits, count](*row, self._sums, *kept, self.bound, chunks, **kind)
        conclude[count,](
            *row, self._sums, *kept, self.tokens, self.logprobs, self.bound, **kind, num_warps=16
        )

    def set(self, columns: Tensor, numbers: Tensor, counts: Tensor) -> None:
        """Write rows' parameters into their columns, int64 [some].

        Args:
            columns: where.
            numbers: temperature, top_p, min_p and repetition penalty, float32 [4, some].
            counts: seed, index and top_k, int64 [3, some].
        """
        self._numbers[:, columns] = numbers
        self._counts[:, columns] = counts

    def note(self, row: int, ids: Tensor) -> None:
        """Take `ids`, int64 [any], for all that a row has seen; ids drawn later add themselves."""
        words = self.seen.shape[1]
        flags = torch.zeros(words * 32, dtype=torch.int64, device=self.seen.device)
        flags[ids.to(flags.device)] = 1
        bits = flags.view(words, 32) << torch.arange(32, device=flags.device)
        self.seen[row] = (bits.sum(-1) << 32 >> 32).to(torch.int32)

    def _check(self, logits: Tensor) -> None:
        rows, size = logits.shape
        if rows > len(self.tokens) or size != self.vocabulary:
            most = (len(self.tokens), self.vocabulary)
            raise ValueError(f"logits must be at most {most}, got {(rows, size)}")
        if logits.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise ValueError(f"logits must be float32, bfloat16 or float16, got {logits.dtype}")
        if logits.stride(1) != 1:
            raise ValueError(f"a row's logits must be neighbours, got strides {logits.stride()}")


def _splits(count: int) -> int:
    return next((splits for splits in _SPLITS if splits * count >= _BLOCKS), _SPLITS[-1])
