"""The sampler on CUDA: entropy, logprob and an exact draw for every row, in four kernels."""

import torch
import triton
from torch import Tensor

from components.decoding.kernels.finish_draw import finish_draw, total_mass
from components.decoding.kernels.resolve_candidates import HEAP, resolve_candidates
from components.decoding.kernels.row import CHUNK, LANES, ROW_WIDTH
from components.decoding.kernels.scan_logits import scan_logits

_MIN_BLOCKS = 2048  # blocks that fill a GPU of some 130 multiprocessors evenly
_SPLITS = (4, 8, 16)


class CudaSampler:
    """Draws the ids that `fast_draw.draw` draws, and measures entropies and logprobs.

    Nothing is allocated after construction and nothing waits for the host, so a call can be
    captured in a CUDA graph once it has run before. The owner writes the columns in place, at any
    time before a step: `temperature`, `top_p`, `min_p`, `repetition_penalty` (float32), `seeds`,
    `indices`, `top_k` (int64), each [rows], and `seen` (see `mark_seen`). Results are written in
    place: `tokens` (int64), `entropies` (nats) and `logprobs` (float32), each [rows]; the latter
    two are those of raw logits.
    """

    def __init__(
        self, rows: int, vocabulary: int, device: torch.device, bound: int, penalises: bool
    ) -> None:
        """Allocate for up to `rows` rows.

        Args:
            rows: the largest number of rows of a call.
            vocabulary: logits per row.
            device: a CUDA device.
            bound: ids from this one on are never drawn; entropies and logprobs include them.
            penalises: whether any row may ever have a repetition penalty, which costs time.
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
        self._row_floats = torch.empty(rows, int(ROW_WIDTH), device=device)
        self._row_ints = torch.empty(rows, int(ROW_WIDTH), dtype=torch.int32, device=device)
        self._heap = torch.empty(rows, int(HEAP), device=device)
        self._heap_mass = torch.empty_like(self._heap)
        self._heap_ids = torch.empty(rows, int(HEAP), dtype=torch.int32, device=device)

    def __call__(self, logits: Tensor) -> None:
        """Draw for the first rows; `logits` is [up to rows, vocabulary], of a floating type.

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
        state = (self._row_floats, self._row_ints)
        heap = (self._listed, self._heap, self._heap_ids, self._heap_mass)
        scan_logits[splits, count](
            *row, self._lanes, self._sums, self.vocabulary, self.bound, tiles, **lanes
        )
        resolve_candidates[count,](
            *row, self._lanes, self._sums, *state, *heap, *results, self.bound, tiles,
            SPAN=span, **lanes, num_warps=8,
        )  # fmt: skip
        chunks = triton.cdiv(triton.cdiv(self.bound, int(CHUNK)), splits)
        total_mass[splits, count](*row, self._sums, *state, self.bound, chunks, **kind)
        finish_draw[count,](
            *row, self._sums, *state, self.tokens, self.logprobs, self.bound, **kind, num_warps=16
        )

    def set_rows(self, columns: Tensor, numbers: Tensor, counts: Tensor) -> None:
        """Write the parameters of n rows.

        Args:
            columns: which rows, int64 [n].
            numbers: temperature, top_p, min_p and repetition penalty, float32 [4, n].
            counts: seed, index and top_k, int64 [3, n].
        """
        self._numbers[:, columns] = numbers
        self._counts[:, columns] = counts

    def mark_seen(self, row: int, ids: Tensor) -> None:
        """Set the ids, int64 [n], that a row has seen; ids that are drawn later are added."""
        words = self.seen.shape[1]
        flags = torch.zeros(words * 32, dtype=torch.int64, device=self.seen.device)
        flags[ids.to(flags.device)] = 1
        bits = flags.view(words, 32) << torch.arange(32, device=flags.device)
        self.seen[row] = (bits.sum(-1) << 32 >> 32).to(torch.int32)

    def _check(self, logits: Tensor) -> None:
        rows, size = logits.shape
        if rows > len(self.tokens) or size != self.vocabulary:
            largest = (len(self.tokens), self.vocabulary)
            raise ValueError(f"logits must be at most {largest}, got {(rows, size)}")
        if logits.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise ValueError(f"logits must be float32, bfloat16 or float16, got {logits.dtype}")
        if logits.stride(1) != 1:
            raise ValueError(f"a row's logits must be contiguous, got strides {logits.stride()}")


def _splits(count: int) -> int:
    return next((splits for splits in _SPLITS if splits * count >= _MIN_BLOCKS), _SPLITS[-1])
