"""Steps on CUDA: a decode step is one graph launch, and the host reads its results later."""

import gc
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor
from transformers import PreTrainedModel

from components.backends.hf.slots.attention import Frame, using_frame
from components.backends.hf.slots.cuda_attention import PagedDecode, PagedPrefill
from components.backends.hf.slots.kernels import step
from components.backends.hf.slots.kv_cache import KVCache
from components.backends.hf.slots.pages import Copy
from components.backends.hf.slots.sequences import ActiveSequence, DrawnTokens
from components.backends.hf.slots.slot_table import SlotTable
from components.backends.hf.slots.upload import upload
from components.decoding.cuda_sampler import CudaSampler

_BUCKETS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 896, 1024)
_MAX_STEPS_PER_LAUNCH = 8
_MANY_SEQUENCES = 256  # above these a launch has more steps: the host needs the time they give it
_REQUESTS_BEFORE_CAPTURE = 3  # launches for which a larger graph serves before one is captured
_PREFILL_DELAY = 4  # launches
_MAX_LAUNCHES_IN_FLIGHT = 1  # while another is started
_MAX_FIRST_DRAWS = 256  # sequences for which a prefill draws at a time


@dataclass(frozen=True, slots=True)
class _Pending:
    """Results on their way to the host, int32 [steps, 3, columns]."""

    sequences: Sequence[ActiveSequence]
    columns: list[int]
    results: Tensor
    arrived: Any  # a CUDA event


class GraphSteps:
    """Steps as CUDA graphs. Every slot's state is on the device, so they do not wait for the host.

    See `scheduler.Steps` for what the methods promise.
    """

    prefill_delay = _PREFILL_DELAY
    changes_logits = False

    def __init__(
        self, model: PreTrainedModel, cache: KVCache, bound: int, slots: int, max_length: int
    ) -> None:
        """The last page of `cache` becomes the scratch page of slots without a sequence.

        Args:
            model: with the decoder's attention in place.
            cache: keys and values.
            bound: the tokenizer has the ids below this one.
            slots: sequences that decode at once.
            max_length: tokens that a sequence can have.
        """
        self._model: Any = model
        self._cache = cache
        self._bound = bound
        self._slots = slots
        self._max_length = max_length
        self._device = device = model.device
        width = -(-(max_length + _MAX_STEPS_PER_LAUNCH) // cache.size)
        self._table = SlotTable(slots, width, cache.pages - 1, device)
        shape = (_MAX_STEPS_PER_LAUNCH, 3, slots)  # ids, entropies and logprobs of every step
        self._results = torch.zeros(shape, dtype=torch.int32, device=device)
        self._counter = torch.zeros(1, dtype=torch.int64, device=device)  # steps of this launch
        self._pending: deque[_Pending] = deque()
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}  # by number of slots
        self._missed: Counter[int] = Counter()  # launches that lacked a graph, by its size
        self._size = model.config.get_text_config().vocab_size
        self._make_samplers(penalises=False)

    def steps_per_launch(self, num_sequences: int) -> int:
        """8 above 256 sequences, else 4.

        Steps past a sequence's stop are thrown away, so few sequences get few steps.
        """
        many = num_sequences > _MANY_SEQUENCES
        return _MAX_STEPS_PER_LAUNCH if many else _MAX_STEPS_PER_LAUNCH // 2

    def prefill(self, chunks: Sequence[tuple[ActiveSequence, int]]) -> None:
        """As `Steps.prefill`; `collect` returns the results."""
        self._table.take_back()
        frame = PagedPrefill(self._cache, chunks)
        ids: list[int] = []
        complete: list[tuple[int, ActiveSequence]] = []
        for number, (active, count) in enumerate(chunks):
            cached = active.cached
            ids += cached.ids[cached.computed : cached.computed + count]
            cached.computed += count
            if not active.num_uncomputed:
                complete.append((number, active))
        numbers = np.array([number for number, _ in complete], dtype=np.int64)
        logits_at = frame.last[upload(numbers, self._device)]
        tokens = upload(np.array(ids), self._device)
        logits = self._forward(tokens, frame.positions, frame, logits_at)
        size = len(self._prefill_sampler.tokens)
        for start in range(0, len(complete), size):
            sequences = [active for _, active in complete[start : start + size]]
            self._draw_first(sequences, logits[start : start + len(sequences)])

    def decode(self, sequences: Sequence[ActiveSequence], steps: int) -> None:
        """As `Steps.decode`; `collect` returns the results."""
        self._table.take_back()
        self._enable_penalties(sequences)
        self._join(sequences)
        bucket = self._bucket()
        self._compact(bucket)
        graph = self.graphs.get(bucket) or self._capture(bucket)
        self._set(self._sampler, self._table.update(sequences))
        self._counter.zero_()
        for _ in range(steps):
            graph.replay()
        columns = [self._table.slot_of[active] for active in sequences]
        self._send_to_host(sequences, columns, self._results[:steps, :, :bucket])
        for active in sequences:
            active.in_flight += steps
            active.cached.computed += steps

    def collect(self, wait: bool) -> list[DrawnTokens]:
        """As `Steps.collect`; waits until no more than one launch is in flight."""
        drawn = []
        while self._pending:
            first = self._pending[0]
            if not (wait or len(self._pending) > _MAX_LAUNCHES_IN_FLIGHT or first.arrived.query()):
                break
            self._pending.popleft()
            first.arrived.synchronize()
            drawn.append(_read(first))
        return drawn

    def copy(self, copies: Sequence[Copy]) -> None:
        """As `Steps.copy`."""
        self._cache.copy(copies)

    def wipe(self, pages: Sequence[int], count: int) -> None:
        """As `Steps.wipe`."""
        self._cache.wipe(pages, count)

    def clear(self) -> None:
        """Free all memory."""
        self.graphs.clear()
        self._pending.clear()
        self._cache.clear()
        gc.unfreeze()

    def place(self, sequences: int, context: int) -> None:
        """Pretend that the first slots hold sequences of `context` tokens: a benchmark."""
        self._table.fill(sequences, context, self._cache.size)
        self._counter.zero_()

    def _make_samplers(self, penalises: bool) -> None:
        arguments = (self._size, self._device, self._bound, penalises)
        self._sampler = CudaSampler(self._slots, *arguments)
        self._prefill_sampler = CudaSampler(min(self._slots, _MAX_FIRST_DRAWS), *arguments)
        self.graphs.clear()
        self._pool = torch.cuda.graph_pool_handle()  # the pool of deleted graphs cannot be reused
        self._table.rewrite()

    def _enable_penalties(self, sequences: Sequence[ActiveSequence]) -> None:
        """Use samplers that keep track of seen ids, once a sequence has a repetition penalty."""
        if self._sampler.penalises or not any(map(_has_penalty, sequences)):
            return
        tokens = self._sampler.tokens
        self._make_samplers(penalises=True)
        self._sampler.tokens.copy_(tokens)

    def _join(self, sequences: Sequence[ActiveSequence]) -> None:
        """Give slots to sequences that start without a prefill: their last id is known."""
        new = [active for active in sequences if active not in self._table.slot_of]
        if not new:
            return
        for active in new:
            self._table.take(active)
        ids = np.array([active.cached.ids[-1] for active in new])
        self._sampler.tokens[self._table.of(new)] = upload(ids, self._device)
        for active in filter(_has_penalty, new):
            self._mark_seen(self._sampler, self._table.slot_of[active], active)

    def _bucket(self) -> int:
        """Slots of the graph to launch: as few as suffice, or those of a larger graph for a while.

        Capturing one takes as long as a hundred steps, and few sequences soon become many.
        """
        fits = _smallest_bucket(len(self._table.slot_of), self._slots)
        larger = [size for size in self.graphs if size >= fits]
        if not larger or fits in self.graphs:
            return fits
        self._missed[fits] += 1
        return fits if self._missed[fits] > _REQUESTS_BEFORE_CAPTURE else min(larger)

    def _compact(self, bucket: int) -> None:
        """Move sequences from slots past the bucket into free ones within it."""
        moves = self._table.compact(bucket)
        if moves is None:
            return
        sampler = self._sampler
        sampler.tokens[moves[1]] = sampler.tokens[moves[0]]
        if sampler.penalises:
            sampler.seen[moves[1]] = sampler.seen[moves[0]]

    def _forward(
        self, ids: Tensor, positions: Tensor, frame: Frame, logits_at: Tensor | int
    ) -> Tensor:
        with torch.inference_mode(), using_frame(frame):
            out = self._model(
                input_ids=ids[None],
                position_ids=positions[None],
                use_cache=False,
                logits_to_keep=logits_at,
            )
        return out.logits[0]  # type: ignore[no-any-return]

    def _draw_first(self, sequences: Sequence[ActiveSequence], logits: Tensor) -> None:
        """Draw the id that follows a prefill, and put it where the next step reads it."""
        self._enable_penalties(sequences)
        sampler, main, count = self._prefill_sampler, self._sampler, len(sequences)
        self._set(sampler, list(zip(sequences, range(count), strict=True)))
        for column, active in enumerate(sequences):
            self._table.take(active)
            if _has_penalty(active):
                self._mark_seen(sampler, column, active)
        sampler(logits)
        slots = self._table.of(sequences)
        main.tokens[slots] = sampler.tokens[:count]
        if main.penalises:
            main.seen[slots] = sampler.seen[:count]
        numbers = (sampler.entropies[:count], sampler.logprobs[:count])
        bits = [values.view(torch.int32) for values in numbers]
        results = torch.stack((sampler.tokens[:count].to(torch.int32), *bits))
        self._send_to_host(sequences, list(range(count)), results[None])
        for active in sequences:
            active.in_flight += 1
            active.decoding = True

    def _send_to_host(
        self, sequences: Sequence[ActiveSequence], columns: list[int], results: Tensor
    ) -> None:
        host = torch.empty(results.shape, dtype=results.dtype, pin_memory=True)
        host.copy_(results, non_blocking=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record()
        self._pending.append(_Pending(list(sequences), columns, host, arrived))

    def _set(self, sampler: CudaSampler, placed: Sequence[tuple[ActiveSequence, int]]) -> None:
        """Write the sampling parameters of sequences into their columns of the sampler."""
        if not placed:
            return
        parameters, counts = [], []
        for active, _ in placed:
            of = active.sequence.request.sampling
            parameters.append((of.temperature, of.top_p, of.min_p, of.repetition_penalty))
            counts.append((active.sequence.seed, active.next_index, of.top_k))
        columns = upload(np.array([column for _, column in placed]), self._device)
        floats = upload(np.array(parameters, dtype=np.float32).T.copy(), self._device)
        sampler.set_rows(columns, floats, upload(np.array(counts).T.copy(), self._device))

    def _mark_seen(self, sampler: CudaSampler, column: int, active: ActiveSequence) -> None:
        sampler.mark_seen(column, upload(np.array(active.cached.ids), self._device))

    def _capture(self, bucket: int) -> torch.cuda.CUDAGraph:
        """Capture the step of the first `bucket` slots. The slots' state is left as it is."""
        sampler, table = self._sampler, self._table
        state = [table.pages, table.positions, table.order, self._counter]
        state += [sampler.tokens, sampler.indices, sampler.seen]
        saved = [tensor.clone() for tensor in state]
        table.empty()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._counter.zero_()
                self._step(bucket)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                self._step(bucket)
        except torch.AcceleratorError as error:
            raise RuntimeError(
                f"a decode step of {type(self._model).__name__} cannot be a CUDA graph, since "
                f"something in it waits for the device ({error}): set backend.decoder=generate"
            ) from error
        for tensor, values in zip(state, saved, strict=True):
            tensor.copy_(values)
        _freeze_compiled_objects(collect=not self.graphs)
        self.graphs[bucket] = graph
        return graph

    def _step(self, bucket: int) -> None:
        """Forward, entropy, draw, and on to the next position, all on the device."""
        sampler, table = self._sampler, self._table
        positions = table.positions[:bucket]
        frame = PagedDecode(self._cache, table.pages, positions, table.order)
        sampler(self._forward(sampler.tokens[:bucket], positions, frame, 0))
        step.advance[1,](
            sampler.tokens, sampler.entropies, sampler.logprobs, positions, sampler.indices,
            self._counter, self._results, bucket, self._slots, self._max_length - 1,
            BLOCK=triton.next_power_of_2(bucket),
        )  # fmt: skip


def _freeze_compiled_objects(collect: bool) -> None:
    """Exempt what exists now from Python's garbage collection, with or without a last one.

    Compiling leaves half a million objects, and a single sequence is compiled for by itself later
    on. Walking them takes most of a second, in which the device has nothing to do.
    """
    if collect:
        gc.collect()
    gc.freeze()


def _has_penalty(active: ActiveSequence) -> bool:
    return active.sequence.request.sampling.repetition_penalty != 1


def _smallest_bucket(sequences: int, slots: int) -> int:
    return min(slots, next((bucket for bucket in _BUCKETS if bucket >= sequences), slots))


def _read(pending: _Pending) -> DrawnTokens:
    """Results as lists [steps][sequences]."""
    values = np.ascontiguousarray(pending.results.numpy()[:, :, pending.columns])
    tokens, floats = values[:, 0].tolist(), values[:, 1:].view(np.float32)
    return DrawnTokens(pending.sequences, tokens, floats[:, 0].tolist(), floats[:, 1].tolist())
