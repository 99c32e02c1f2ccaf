"""Steps of a model in plain PyTorch, on any device: each is over before the next begins."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from components.backends.decoder.attention import DecodeFrame, Frame, Piece, PrefillFrame, using
from components.backends.decoder.cache import KeyValues
from components.backends.decoder.rows import Drawn, Running
from components.backends.sampling import Settings, draw, observe
from pipeline.spec import Sampling


class PlainSteps:
    """Computes the next token of rows, with exact attention over their pages."""

    ahead = 1
    waits = 0

    def __init__(self, model: PreTrainedModel, cache: KeyValues, allowed: Tensor) -> None:
        """`allowed` is a bool [vocabulary] of ids that the tokenizer has."""
        self.cache = cache
        self._model: Any = model
        self._allowed = allowed
        self._device = model.device
        self._settings: tuple[list[Sampling], Settings] | None = None

    def prefill(self, parts: Sequence[tuple[Running, int]]) -> Drawn | None:
        """Compute the next `count` ids of every row; draw for those that have no more."""
        size = self.cache.size
        ids: list[int] = []
        positions: list[int] = []
        pages: list[int] = []
        pieces, last = [], []
        for running, count in parts:
            held, start = running.held, running.held.computed
            places = range(start, start + count)
            pieces.append(
                Piece(
                    len(ids),
                    count,
                    start + count,
                    torch.tensor(held.pages[: -(-(start + count) // size)], device=self._device),
                )
            )
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

    def decode(self, rows: Sequence[Running], steps: int) -> Drawn:
        """One more id for every row; `steps` is 1."""
        # In the order of their pages, so that neighbours are read without a copy.
        rows = sorted(rows, key=lambda running: running.held.pages[0])
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

    def collect(self, wait: bool) -> list[Drawn]:
        """Nothing is ever under way."""
        return []

    def clear(self) -> None:
        """Let go of the cache."""
        self.cache.clear()

    def _forward(self, ids: Tensor, positions: Tensor, frame: Frame, keep: Tensor | None) -> Tensor:
        """Raw float32 logits [rows, vocabulary] after the tokens at `keep`, or after all."""
        some = {} if keep is None else {"logits_to_keep": keep}
        with torch.inference_mode(), using(frame):
            out = self._model(
                input_ids=ids[None], position_ids=positions[None], use_cache=False, **some
            )
        return out.logits[0].float()  # type: ignore[no-any-return]

    def _draw(self, logits: Tensor, rows: Sequence[Running]) -> Drawn:
        with torch.inference_mode():
            settings = self._settings_of(rows)
            seeds = torch.tensor([running.row.seed for running in rows], device=self._device)
            indices = torch.tensor([running.drawn for running in rows], device=self._device)
            seen = self._seen(rows, logits.shape[-1]) if settings.penalises else None
            tokens = draw(logits, settings, seeds, indices, self._allowed, seen)
            entropies = logprobs = [0.0] * len(rows)
            if any(running.row.request.entropy for running in rows):
                entropy, total = observe(logits)
                chosen = logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
                entropies, logprobs = torch.stack((entropy, chosen - total)).tolist()
        for running in rows:
            running.ahead += 1
            running.started = True
        return Drawn(rows, [tokens.tolist()], [entropies], [logprobs])

    def _settings_of(self, rows: Sequence[Running]) -> Settings:
        sampling = [running.row.request.sampling for running in rows]
        if self._settings is None or self._settings[0] != sampling:
            self._settings = (sampling, Settings.of(sampling, self._device))
        return self._settings[1]

    def _seen(self, rows: Sequence[Running], size: int) -> Tensor:
        seen = torch.zeros(len(rows), size, dtype=torch.bool, device=self._device)
        for mark, running in zip(seen, rows, strict=True):
            mark[torch.tensor(running.held.ids, device=self._device)] = True
        return seen
