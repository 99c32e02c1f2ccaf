"""Steps of a model in plain PyTorch, on any device: each is over before the next begins."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from components.backends.hf.slots.attention import DecodeFrame, Frame, Piece, PrefillFrame, using
from components.backends.hf.slots.kv_cache import KeyValues
from components.backends.hf.slots.rows import Drawn, Running
from components.backends.hf.slots.threads import Shards, halves
from components.decoding.fast_draw import sample
from components.decoding.sampling import Settings

SHARE = 4  # tokens of a step that are worth a thread of their own


class PlainSteps:
    """Computes the next token of rows, with exact attention over their pages."""

    waits = 0

    def __init__(self, model: PreTrainedModel, cache: KeyValues, allowed: Tensor) -> None:
        """`allowed` is a bool [vocabulary] of ids that the tokenizer has."""
        self.cache = cache
        self._model: Any = model
        self._allowed = None if bool(allowed.all()) else allowed
        self._device = model.device
        self._shards = Shards()
        self._splits = model.device.type == "cpu" and _keeps_rotation(model)

    def ahead(self, rows: int) -> int:
        """Every step waits for the one before."""
        return 1

    def prefill(self, parts: Sequence[tuple[Running, int]]) -> Drawn | None:
        """Compute the next `count` ids of every row; draw for those that have no more."""
        sizes = [count for _, count in parts]
        groups = halves(sizes, self._threads(sum(sizes)))
        some = [[parts[place] for place in group] for group in groups]
        return _joined([d for d in self._shards.run(self._prefill, some) if d is not None])

    def decode(self, rows: Sequence[Running], steps: int) -> Drawn:
        """One more id for every row; `steps` is 1."""
        # In the order of their pages, so that neighbours are read without a copy.
        size = self.cache.size
        rows = sorted(rows, key=lambda r: (len(r.held.ids) > size, r.held.pages[0]))
        share = -(-len(rows) // self._threads(len(rows)))
        some = [rows[start : start + share] for start in range(0, len(rows), share)]
        drawn = _joined(self._shards.run(self._decode, some))
        assert drawn is not None
        return drawn

    def _threads(self, tokens: int) -> int:
        """How many threads share `tokens` tokens; one leaves all cores to every operation."""
        return min(torch.get_num_threads(), max(1, tokens // SHARE)) if self._splits else 1

    def _prefill(self, parts: Sequence[tuple[Running, int]]) -> Drawn | None:
        size = self.cache.size
        ids: list[int] = []
        positions: list[int] = []
        pages: list[int] = []
        pieces, last = [], []
        for running, count in parts:
            held, start = running.held, running.held.computed
            places = range(start, start + count)
            table = torch.tensor(held.pages[: -(-(start + count) // size)], device=self._device)
            pieces.append(Piece(len(ids), count, start + count, table))
            ids += held.ids[start : start + count]
            positions += places
            pages += [held.pages[place // size] for place in places]
            held.computed += count
            if not running.uncomputed:
                last.append((running, len(ids) - 1))
        placed = torch.tensor([positions, pages], device=self._device)
        frame = PrefillFrame(self.cache, placed[1], placed[0] % size, pieces)
        wanted = torch.tensor([place for _, place in last], dtype=torch.int64, device=self._device)
        logits = self._forward(torch.tensor(ids, device=self._device), placed[0], frame, wanted)
        return self._draw(logits, [running for running, _ in last]) if last else None

    def _decode(self, rows: Sequence[Running]) -> Drawn:
        ids = torch.tensor([running.held.ids[-1] for running in rows], device=self._device)
        lengths = [len(running.held.ids) for running in rows]
        tables = [running.held.pages for running in rows]
        dtype = self.cache.layers[0].dtype
        frame = DecodeFrame(self.cache, tables, lengths, self._device, dtype)
        positions = torch.tensor(lengths, device=self._device) - 1
        logits = self._forward(ids, positions, frame, None)
        for running in rows:
            running.held.computed += 1
        return self._draw(logits, rows)

    def copy(self, copies: Sequence[Any]) -> None:
        """Copy the starts of pages."""
        self.cache.copy(copies)

    def wipe(self, pages: Sequence[int], count: int) -> None:
        """Put zeros for the first `count` tokens of pages."""
        self.cache.wipe(pages, count)

    def collect(self, wait: bool) -> list[Drawn]:
        """Nothing is ever under way."""
        return []

    def clear(self) -> None:
        """Let go of the cache and of threads."""
        self._shards.close()
        self.cache.clear()

    def _forward(self, ids: Tensor, positions: Tensor, frame: Frame, keep: Tensor | None) -> Tensor:
        """Raw logits [rows, vocabulary] after the tokens at `keep`, or after all."""
        some = {} if keep is None else {"logits_to_keep": keep}
        with torch.inference_mode(), using(frame):
            out = self._model(
                input_ids=ids[None], position_ids=positions[None], use_cache=False, **some
            )
        return out.logits[0]  # type: ignore[no-any-return]

    def _draw(self, logits: Tensor, rows: Sequence[Running]) -> Drawn:
        with torch.inference_mode():
            settings = Settings.of([r.row.request.sampling for r in rows], self._device)
            seeds = torch.tensor([running.row.seed for running in rows], device=self._device)
            indices = torch.tensor([running.drawn for running in rows], device=self._device)
            seen = self._seen(rows, logits.shape[-1]) if settings.penalises else None
            made = sample(logits, settings, seeds, indices, self._allowed, seen)
            entropies, logprobs = torch.stack((made.entropies, made.logprobs)).tolist()
        for running in rows:
            running.ahead += 1
            running.started = True
        return Drawn(rows, [made.tokens.tolist()], [entropies], [logprobs])

    def _seen(self, rows: Sequence[Running], size: int) -> Tensor:
        seen = torch.zeros(len(rows), size, dtype=torch.bool, device=self._device)
        for mark, running in zip(seen, rows, strict=True):
            mark[torch.tensor(running.held.ids, device=self._device)] = True
        return seen


def _joined(parts: Sequence[Drawn]) -> Drawn | None:
    """One step's parts as one."""
    if len(parts) < 2:
        return parts[0] if parts else None
    rows = [running for part in parts for running in part.rows]
    columns = ([[x for p in parts for x in getattr(p, name)[0]]] for name in _COLUMNS)
    return Drawn(rows, *columns)


def _keeps_rotation(model: PreTrainedModel) -> bool:
    """Whether positions are turned alike in every call, so that calls may run side by side."""
    config = model.config.get_text_config()
    told = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kinds = [told, *(kind for kind in told.values() if isinstance(kind, dict))]
    return not any(kind.get("rope_type") in ("dynamic", "longrope") for kind in kinds)


_COLUMNS = ("tokens", "entropies", "logprobs")
