"""Steps on CUDA: a decoding step is one graph launch, and the host reads results a while later."""

import gc
import heapq
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor
from transformers import PreTrainedModel

from components.backends.hf.slots import kernels as step
from components.backends.hf.slots.attention import Frame, using
from components.backends.hf.slots.cuda_attention import PagedDecode, PagedPrefill, upload
from components.backends.hf.slots.kv_cache import KeyValues
from components.backends.hf.slots.pages import Copy
from components.backends.hf.slots.rows import Drawn, Running
from components.decoding.cuda_sampler import FusedSampler

_BUCKETS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 896, 1024)
_AHEAD = 8  # steps started in one go at most
_BUSY = 256  # rows above which the host needs the time that more steps give it
_OFTEN = 3  # goes that want a graph of some size before it is made, if a larger one can serve
_WAITS = 4  # goes that a prefill may wait
_BEHIND = 1  # goes that may be under way while another is started
_PREFILLED = 256  # rows that leave a prefill together at most


@dataclass(frozen=True, slots=True)
class _Pending:
    """Results on their way to the host, int32 [steps, 3, columns]."""

    rows: Sequence[Running]
    columns: list[int]
    results: Tensor
    arrived: Any  # a CUDA event


class GraphSteps:
    """Keeps every slot's state on the device, so that steps follow each other without the host."""

    waits = _WAITS

    def __init__(
        self, model: PreTrainedModel, cache: KeyValues, bound: int, slots: int, longest: int
    ) -> None:
        """The last page of `cache` is taken for slots without a row.

        Args:
            model: with the decoder's attention in place.
            cache: keys and values.
            bound: ids from here on are not the tokenizer's.
            slots: rows that decode at once.
            longest: tokens that a row can have.
        """
        self._model: Any = model
        self._cache = cache
        self._bound = bound
        self._slots = slots
        self._longest = longest
        self._device = device = model.device
        self._waste = cache.pages - 1
        width = -(-(longest + _AHEAD) // cache.size)
        self._table = torch.full((slots, width), self._waste, dtype=torch.int32, device=device)
        self._positions = torch.zeros(slots, dtype=torch.int64, device=device)
        self._slots_in_turn = torch.arange(slots, dtype=torch.int32, device=device)
        self._order = self._slots_in_turn.clone()
        self._results = torch.zeros(_AHEAD, 3, slots, dtype=torch.int32, device=device)
        self._counter = torch.zeros(1, dtype=torch.int64, device=device)
        self._holders: list[Running | None] = [None] * slots  # as the device has it
        self._written = [0] * slots  # pages of a slot's row that the table has
        self._slot: dict[Running, int] = {}
        self._free = list(range(slots))  # a heap: the lowest go first
        self._pending: deque[_Pending] = deque()
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._asked: Counter[int] = Counter()  # goes for which a graph of some size was not there
        self._size = model.config.get_text_config().vocab_size
        self._make_samplers(penalises=False)

    def ahead(self, rows: int) -> int:
        """Few steps waste little behind the ends of rows."""
        return _AHEAD if rows > _BUSY else _AHEAD // 2

    def prefill(self, parts: Sequence[tuple[Running, int]]) -> None:
        """Compute the next `count` ids of every row; draw for those that have no more."""
        self._tidy()
        frame = PagedPrefill(self._cache, parts)
        ids: list[int] = []
        done: list[tuple[int, Running]] = []
        for number, (running, count) in enumerate(parts):
            held = running.held
            ids += held.ids[held.computed : held.computed + count]
            held.computed += count
            if not running.uncomputed:
                done.append((number, running))
        keep = frame.last[upload(np.array([n for n, _ in done], dtype=np.int64), self._device)]
        tokens = upload(np.array(ids), self._device)
        logits = self._forward(tokens, frame.positions, frame, keep)
        for start in range(0, len(done), len(self._first.tokens)):
            some = [running for _, running in done[start : start + len(self._first.tokens)]]
            self._draw_first(some, logits[start : start + len(some)])

    def decode(self, rows: Sequence[Running], steps: int) -> None:
        """Start `steps` steps of all rows."""
        self._tidy()
        self._penalise(rows)
        self._join(rows)
        bucket = self._bucket()
        self._compact(bucket)
        graph = self.graphs.get(bucket) or self._capture(bucket)
        self._place(rows)
        self._counter.zero_()
        for _ in range(steps):
            graph.replay()
        self._send(rows, [self._slot[r] for r in rows], self._results[:steps, :, :bucket])
        for running in rows:
            running.ahead += steps
            running.held.computed += steps

    def collect(self, wait: bool) -> list[Drawn]:
        """What has arrived; all that is under way if `wait`, and all but the last goes anyway."""
        drawn = []
        while self._pending:
            first = self._pending[0]
            if not (wait or len(self._pending) > _BEHIND or first.arrived.query()):
                break
            self._pending.popleft()
            first.arrived.synchronize()
            drawn.append(_read(first))
        return drawn

    def copy(self, copies: Sequence[Copy]) -> None:
        """Copy the starts of pages."""
        self._cache.copy(copies)

    def wipe(self, pages: Sequence[int], count: int) -> None:
        """Put zeros for the first `count` tokens of pages."""
        self._cache.wipe(pages, count)

    def clear(self) -> None:
        """Let go of all memory."""
        self.graphs.clear()
        self._pending.clear()
        self._cache.clear()
        gc.unfreeze()

    def place(self, rows: int, context: int) -> None:
        """Pretend that the first slots hold rows of `context` tokens, all in pages of their own.

        For measurements, with no rows under way.
        """
        used = -(-context // self._cache.size) + 1
        pages = torch.arange(rows * used, device=self._device) % self._waste
        self._table[:rows, :used] = pages.view(rows, used).to(torch.int32)
        self._positions.fill_(context)
        self._order.copy_(self._slots_in_turn)
        self._counter.zero_()

    def _make_samplers(self, penalises: bool) -> None:
        made = (self._size, self._device, self._bound, penalises)
        self._sampler = FusedSampler(self._slots, *made)
        self._first = FusedSampler(min(self._slots, _PREFILLED), *made)
        self.graphs.clear()
        self._pool = torch.cuda.graph_pool_handle()  # one whose graphs are gone cannot be used on
        self._holders = [None] * self._slots

    def _penalise(self, rows: Sequence[Running]) -> None:
        """Change to samplers that note what rows have seen, once a row has a penalty."""
        if self._sampler.penalises or not any(map(_penalised, rows)):
            return
        tokens = self._sampler.tokens
        self._make_samplers(penalises=True)
        self._sampler.tokens.copy_(tokens)

    def _tidy(self) -> None:
        """Take back the slots of rows that are gone."""
        for running in [running for running in self._slot if running.gone]:
            heapq.heappush(self._free, self._slot.pop(running))

    def _join(self, rows: Sequence[Running]) -> None:
        """Give slots to rows that start without a prefill, their last id known."""
        new = [running for running in rows if running not in self._slot]
        if not new:
            return
        for running in new:
            self._slot[running] = heapq.heappop(self._free)
        slots = upload(np.array([self._slot[running] for running in new]), self._device)
        ids = np.array([running.held.ids[-1] for running in new])
        self._sampler.tokens[slots] = upload(ids, self._device)
        for running in filter(_penalised, new):
            self._note(self._sampler, self._slot[running], running)

    def _bucket(self) -> int:
        """Slots of the graph to launch: as few as there are, or more where that saves making one.

        Making one takes as long as a hundred steps, and few rows soon become many.
        """
        fits = _bucket(len(self._slot), self._slots)
        larger = [size for size in self.graphs if size >= fits]
        if not larger or fits in self.graphs:
            return fits
        self._asked[fits] += 1
        return fits if self._asked[fits] > _OFTEN else min(larger)

    def _compact(self, bucket: int) -> None:
        """Move rows from slots behind the bucket into free ones within."""
        moves = [(s, heapq.heappop(self._free), r) for r, s in self._slot.items() if s >= bucket]
        if not moves:
            return
        for old, new, running in moves:
            heapq.heappush(self._free, old)
            self._slot[running] = new
        places = upload(np.array([move[:2] for move in moves]).T.copy(), self._device)
        sampler = self._sampler
        sampler.tokens[places[1]] = sampler.tokens[places[0]]
        if sampler.penalises:
            sampler.seen[places[1]] = sampler.seen[places[0]]

    def _forward(self, ids: Tensor, positions: Tensor, frame: Frame, keep: Tensor | int) -> Tensor:
        with torch.inference_mode(), using(frame):
            out = self._model(
                input_ids=ids[None],
                position_ids=positions[None],
                use_cache=False,
                logits_to_keep=keep,
            )
        return out.logits[0]  # type: ignore[no-any-return]

    def _draw_first(self, rows: Sequence[Running], logits: Tensor) -> None:
        """Draw the id that follows a prefill, and put it where the next step reads it."""
        self._penalise(rows)
        sampler, main, count = self._first, self._sampler, len(rows)
        self._set(sampler, list(zip(rows, range(count), strict=True)))
        for column, running in enumerate(rows):
            self._slot[running] = heapq.heappop(self._free)
            if _penalised(running):
                self._note(sampler, column, running)
        sampler(logits)
        slots = upload(np.array([self._slot[running] for running in rows]), self._device)
        main.tokens[slots] = sampler.tokens[:count]
        if main.penalises:
            main.seen[slots] = sampler.seen[:count]
        numbers = (sampler.entropies[:count], sampler.logprobs[:count])
        bits = [values.view(torch.int32) for values in numbers]
        results = torch.stack((sampler.tokens[:count].to(torch.int32), *bits))
        self._send(rows, list(range(count)), results[None])
        for running in rows:
            running.ahead += 1
            running.started = True

    def _send(self, rows: Sequence[Running], columns: list[int], results: Tensor) -> None:
        host = torch.empty(results.shape, dtype=results.dtype, pin_memory=True)
        host.copy_(results, non_blocking=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record()
        self._pending.append(_Pending(list(rows), columns, host, arrived))

    def _place(self, rows: Sequence[Running]) -> None:
        """Bring the device's view of slots up to date: pages, and all else where rows changed."""
        holders: list[Running | None] = [None] * self._slots
        for running in rows:
            holders[self._slot[running]] = running
        changed = [s for s in range(self._slots) if self._holders[s] is not holders[s]]
        left = [slot for slot in changed if holders[slot] is None]
        if left:  # they go on with every step: none of their places may be a page that others have
            self._table[upload(np.array(left), self._device)] = self._waste
        cells: list[tuple[int, int, int]] = []
        for slot in changed:
            self._written[slot] = 0
        for running in rows:
            slot, pages = self._slot[running], running.held.pages
            cells += [(slot, n, pages[n]) for n in range(self._written[slot], len(pages))]
            self._written[slot] = len(pages)
        if cells:
            places = upload(np.array(cells).T.copy(), self._device)
            self._table[places[0], places[1]] = places[2].to(torch.int32)
        if changed:
            computed = [0 if held is None else held.held.computed for held in holders]
            self._positions.copy_(upload(np.array(computed), self._device))
            order = np.argsort(-np.array(computed), kind="stable").astype(np.int32)
            self._order.copy_(upload(order, self._device))
            new = [(holder, slot) for slot in changed if (holder := holders[slot]) is not None]
            self._set(self._sampler, new)
        self._holders = holders

    def _set(self, sampler: FusedSampler, placed: Sequence[tuple[Running, int]]) -> None:
        """Write the parameters of rows into their columns of the sampler."""
        if not placed:
            return
        parameters, counts = [], []
        for running, _ in placed:
            of = running.row.request.sampling
            parameters.append((of.temperature, of.top_p, of.min_p, of.repetition_penalty))
            counts.append((running.row.seed, running.drawn, of.top_k))
        columns = upload(np.array([column for _, column in placed]), self._device)
        floats = upload(np.array(parameters, dtype=np.float32).T.copy(), self._device)
        sampler.set(columns, floats, upload(np.array(counts).T.copy(), self._device))

    def _note(self, sampler: FusedSampler, column: int, running: Running) -> None:
        sampler.note(column, upload(np.array(running.held.ids), self._device))

    def _capture(self, bucket: int) -> torch.cuda.CUDAGraph:
        """The step of the first `bucket` slots as a graph. The slots' state stays as it is."""
        sampler = self._sampler
        state = [self._table, self._positions, self._order, self._counter]
        state += [sampler.tokens, sampler.indices, sampler.seen]
        saved = [tensor.clone() for tensor in state]
        self._table.fill_(self._waste)
        self._positions.zero_()
        self._order.copy_(self._slots_in_turn)
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._counter.zero_()
                self._step(bucket)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            self._step(bucket)
        for tensor, values in zip(state, saved, strict=True):
            tensor.copy_(values)
        if not self.graphs:
            _spare_the_collector()
        self.graphs[bucket] = graph
        return graph

    def _step(self, bucket: int) -> None:
        """Forward, entropy, draw, and on to the next position, all on the device."""
        sampler, positions = self._sampler, self._positions[:bucket]
        frame = PagedDecode(self._cache, self._table, positions, self._order)
        sampler(self._forward(sampler.tokens[:bucket], positions, frame, 0))
        step.advance[1,](
            sampler.tokens, sampler.entropies, sampler.logprobs, positions, sampler.indices,
            self._counter, self._results, bucket, self._slots, self._longest - 1,
            BLOCK=triton.next_power_of_2(bucket),
        )  # fmt: skip


def _spare_the_collector() -> None:
    """Keep Python's collector from walking what the compiler has made.

    Half a million objects take it most of a second, in which the device runs dry.
    """
    gc.collect()
    gc.freeze()


def _penalised(running: Running) -> bool:
    return running.row.request.sampling.repetition_penalty != 1


def _bucket(rows: int, most: int) -> int:
    return min(most, next((bucket for bucket in _BUCKETS if bucket >= rows), most))


def _read(pending: _Pending) -> Drawn:
    """Results as lists [steps][rows]."""
    values = np.ascontiguousarray(pending.results.numpy()[:, :, pending.columns])
    floats = values[:, 1:].view(np.float32)
    return Drawn(pending.rows, values[:, 0].tolist(), floats[:, 0].tolist(), floats[:, 1].tolist())
