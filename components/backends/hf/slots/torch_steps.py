"""Prefill and decode steps in plain PyTorch, on any device; each ends before the next starts."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from components.backends.hf.slots.attention import (
    DecodeFrame,
    Frame,
    PrefillChunk,
    PrefillFrame,
    using_frame,
)
from components.backends.hf.slots.kv_cache import KVCache
from components.backends.hf.slots.sequences import ActiveSequence, DrawnTokens
from components.backends.hf.slots.threads import ThreadTeam, balanced_groups
from components.decoding.fast_draw import sample
from components.decoding.sampling import SamplingTensors
from components.decoding.sequence import changed_logits

TOKENS_PER_THREAD = 4  # a step uses at most one thread for this many tokens


class TorchSteps:
    """Computes the next token of sequences, with exact attention over their pages."""

    prefill_delay = 0
    changes_logits = True

    cache: KVCache

    def __init__(self, model: PreTrainedModel, cache: KVCache | None, allowed: Tensor) -> None:
        """`allowed`: bool [vocabulary], True for ids that the tokenizer has."""
        if cache is not None:
            self.cache = cache
        self._model: Any = model
        self._allowed = None if bool(allowed.all()) else allowed
        self._device = model.device
        self._team = ThreadTeam()
        self._parallel = model.device.type == "cpu" and rotates_alike(model)

    def steps_per_launch(self, num_sequences: int) -> int:
        """One: every step waits for the one before."""
        return 1

    def prefill(self, chunks: Sequence[tuple[ActiveSequence, int]]) -> DrawnTokens | None:
        """As `Steps.prefill`; results are returned at once."""
        sizes = [count for _, count in chunks]
        places = balanced_groups(sizes, self._threads(sum(sizes)))
        groups = [[chunks[place] for place in group] for group in places]
        return joined([d for d in self._team.run(self._prefill, groups) if d is not None])

    def decode(self, sequences: Sequence[ActiveSequence], steps: int) -> DrawnTokens:
        """Draw one more id for every sequence; `steps` is 1."""
        # In the order of their pages, so that adjacent pages are read without a copy.
        size = self.cache.size
        sequences = sorted(
            sequences, key=lambda each: (len(each.cached.ids) > size, each.cached.pages[0])
        )
        group_size = -(-len(sequences) // self._threads(len(sequences)))
        groups = [
            sequences[start : start + group_size] for start in range(0, len(sequences), group_size)
        ]
        drawn = joined(self._team.run(self._decode, groups))
        assert drawn is not None
        return drawn

    def _threads(self, tokens: int) -> int:
        """Threads that share a step of `tokens` tokens; a single one uses all cores."""
        if not self._parallel:
            return 1
        return min(torch.get_num_threads(), max(1, tokens // TOKENS_PER_THREAD))

    def _prefill(self, chunks: Sequence[tuple[ActiveSequence, int]]) -> DrawnTokens | None:
        size = self.cache.size
        ids: list[int] = []
        positions: list[int] = []
        pages: list[int] = []
        pieces, last = [], []
        for active, count in chunks:
            cached, start = active.cached, active.cached.computed
            places = range(start, start + count)
            table = torch.tensor(cached.pages[: -(-(start + count) // size)], device=self._device)
            pieces.append(PrefillChunk(len(ids), count, start + count, table))
            ids += cached.ids[start : start + count]
            positions += places
            pages += [cached.pages[place // size] for place in places]
            cached.computed += count
            if not active.num_uncomputed:
                last.append((active, len(ids) - 1))
        placed = torch.tensor([positions, pages], device=self._device)
        frame = PrefillFrame(self.cache, placed[1], placed[0] % size, pieces)
        wanted = torch.tensor([place for _, place in last], dtype=torch.int64, device=self._device)
        logits = self._forward(torch.tensor(ids, device=self._device), placed[0], frame, wanted)
        return self._draw(logits, [active for active, _ in last]) if last else None

    def _decode(self, sequences: Sequence[ActiveSequence]) -> DrawnTokens:
        ids = torch.tensor([active.cached.ids[-1] for active in sequences], device=self._device)
        lengths = [len(active.cached.ids) for active in sequences]
        tables = [active.cached.pages for active in sequences]
        frame = DecodeFrame(self.cache, tables, lengths, self._device, self._model.dtype)
        positions = torch.tensor(lengths, device=self._device) - 1
        logits = self._forward(ids, positions, frame, None)
        for active in sequences:
            active.cached.computed += 1
        return self._draw(logits, sequences)

    def copy(self, copies: Sequence[Any]) -> None:
        """As `Steps.copy`."""
        self.cache.copy(copies)

    def wipe(self, pages: Sequence[int], count: int) -> None:
        """As `Steps.wipe`."""
        self.cache.wipe(pages, count)

    def collect(self, wait: bool) -> list[DrawnTokens]:
        """Nothing is ever in flight."""
        return []

    def clear(self) -> None:
        """Free the cache and end the threads."""
        self._team.close()
        self.cache.clear()

    def _forward(
        self, ids: Tensor, positions: Tensor, frame: Frame, logits_at: Tensor | None
    ) -> Tensor:
        """Raw logits [tokens, vocabulary] after the tokens at `logits_at`, or after all."""
        optional = {} if logits_at is None else {"logits_to_keep": logits_at}
        with torch.inference_mode(), using_frame(frame):
            out = self._model(
                input_ids=ids[None], position_ids=positions[None], use_cache=False, **optional
            )
        return out.logits[0]  # type: ignore[no-any-return]

    def _draw(self, logits: Tensor, sequences: Sequence[ActiveSequence]) -> DrawnTokens:
        with torch.inference_mode():
            rows = [active.sequence for active in sequences]
            settings = SamplingTensors.of([row.filters for row in rows], self._device)
            seeds = torch.tensor([row.seed for row in rows], device=self._device)
            indices = torch.tensor([active.next_index for active in sequences], device=self._device)
            seen = self._seen(sequences, logits.shape[-1]) if settings.penalises else None
            changed = changed_logits(logits, rows, self._allowed)
            sampled = sample(
                logits,
                settings,
                seeds,
                indices,
                self._allowed,
                seen,
                changed=None if changed is logits else changed,
            )
            entropies, logprobs = torch.stack((sampled.entropies, sampled.logprobs)).tolist()
        for active in sequences:
            active.in_flight += 1
            active.decoding = True
        return DrawnTokens(sequences, [sampled.tokens.tolist()], [entropies], [logprobs])

    def _seen(self, sequences: Sequence[ActiveSequence], size: int) -> Tensor:
        seen = torch.zeros(len(sequences), size, dtype=torch.bool, device=self._device)
        for flags, active in zip(seen, sequences, strict=True):
            flags[torch.tensor(active.cached.ids, device=self._device)] = True
        return seen


def joined(parts: Sequence[DrawnTokens]) -> DrawnTokens | None:
    """The results of several threads as one."""
    if len(parts) < 2:
        return parts[0] if parts else None
    sequences = [active for part in parts for active in part.sequences]
    columns = ([[x for p in parts for x in getattr(p, name)[0]]] for name in _COLUMNS)
    return DrawnTokens(sequences, *columns)


def rotates_alike(model: PreTrainedModel) -> bool:
    """Whether rotary frequencies are the same in every call, so that calls may run in parallel."""
    config = model.config.get_text_config()
    parameters = (
        getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    )
    kinds = [parameters, *(kind for kind in parameters.values() if isinstance(kind, dict))]
    return not any(kind.get("rope_type") in ("dynamic", "longrope") for kind in kinds)


_COLUMNS = ("tokens", "entropies", "logprobs")
