"""Left-padded batches, and which sequences may share one."""

from collections import defaultdict
from collections.abc import Sequence
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
)

from components.decoding.sequence import TokenSequence

_TRIAL = (9, 33)  # tokens of two sequences: the first gets more padding than it has tokens
_TRIAL_STEPS = 3
# Relative error of logits from which padding counts as read; rounding alone stays well below.
_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}
_COARSE = 0.05  # of half precision


def padded(rows: Sequence[Sequence[int]], device: torch.device) -> dict[str, Tensor]:
    """Ids with padding on the left, attention mask and positions, each [rows, longest]."""
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + list(row) for row in rows], device=device)
    mask = torch.tensor(
        [[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=device
    )
    positions = (mask.cumsum(-1) - 1).clamp_(min=0)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions}


class Sharing(Enum):
    """Which sequences a call of the model can compute together."""

    PADDED = "any"
    EQUAL_LENGTHS = "only rows of equal length"
    ALONE = "no two rows"


def sharing(model: PreTrainedModel, use_cache: bool) -> Sharing:
    """What changes no sequence's logits, by a trial.

    Some models with recurrent state read padding into it (RecurrentGemma) or mix the rows of a
    batch (RWKV in Transformers 5).
    """
    size = model.config.get_text_config().vocab_size
    rows = [[(7919 * n + 11 * length) % size for n in range(length)] for length in _TRIAL]
    first, other = rows[0], rows[0][::-1]
    alone = _trial(model, [first], use_cache)[0]

    def holds(company: Sequence[int]) -> bool:
        together = _trial(model, [first, company], use_cache)[0]
        error = float((together - alone).double().norm() / alone.double().norm())
        return error < _TOLERANCE.get(model.dtype, _COARSE)

    if holds(rows[1]):
        return Sharing.PADDED
    return Sharing.EQUAL_LENGTHS if holds(other) else Sharing.ALONE


def _trial(model: Any, rows: Sequence[Sequence[int]], use_cache: bool) -> Tensor:
    """Raw logits [rows, steps, vocabulary] of a few steps with ids that are forced."""
    make: Any = GenerationConfig
    config = make(
        do_sample=False,
        max_new_tokens=_TRIAL_STEPS,
        use_cache=use_cache,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    with torch.inference_mode():
        out = model.generate(
            **padded(rows, model.device),
            generation_config=config,
            logits_processor=LogitsProcessorList([_Forced()]),
        )
    return torch.stack(out.logits, dim=1)


class _Forced(LogitsProcessor):
    """Lets every step draw id 1."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """0 for that id, else minus infinity."""
        forced = torch.full_like(scores, -torch.inf)
        forced[:, 1] = 0.0
        return forced


def rotary_switch(model: PreTrainedModel) -> int | None:
    """Length beyond which LongRoPE turns all positions of a call by other factors.

    A model chooses the factors by the longest sequence of a call, for all of its sequences.
    None where the model has no such length, or has no positions beyond it.
    """
    config = model.config.get_text_config()
    parameters = getattr(config, "rope_parameters", None) or {}
    kinds = [parameters, *(kind for kind in parameters.values() if isinstance(kind, dict))]
    lengths = [
        kind.get("original_max_position_embeddings")
        or getattr(config, "original_max_position_embeddings", None)
        for kind in kinds
        if kind.get("rope_type") == "longrope"
    ]
    context = getattr(config, "max_position_embeddings", None)
    known = [length for length in lengths if length and (context is None or length < context)]
    return min(known, default=None)


def separate(
    sequences: Sequence[TokenSequence], sharing: Sharing, switch: int | None
) -> list[list[TokenSequence]]:
    """The parts of a batch that can share a call, so that no sequence depends on the others.

    Args:
        sequences: the batch.
        sharing: what calls of the model can take.
        switch: as of `rotary_switch`; a sequence that may grow beyond it is alone.
    """
    parts: dict[tuple[int, int], list[TokenSequence]] = defaultdict(list)
    for number, sequence in enumerate(sequences):
        length = len(sequence.ids)
        switches = switch is not None and length + sequence.num_remaining > switch
        if switches or sharing is Sharing.ALONE:
            parts[number + 1, 0].append(sequence)
        else:
            parts[0, length if sharing is Sharing.EQUAL_LENGTHS else 0].append(sequence)
    return list(parts.values())
