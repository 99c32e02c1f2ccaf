"""Whether a saved model computes what the one in memory does."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.exports.chosen_model import ChosenModel
from components.models.checkpoint import Checkpoint
from components.models.source import Source
from components.quantization.precision import Precision
from pipeline.spec import SpecError

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

_CLOSE = 1e-3  # of a logit; on one device the reloaded weights give the same ones
_TOKENS = 16


def logits_of(model: "PreTrainedModel") -> "Tensor":
    """Logits [tokens, vocabulary] of a few ids, in float32 on the processor."""
    import torch

    ids = torch.arange(_TOKENS, device=model.device)[None]
    forward: Any = model
    with torch.inference_mode():
        logits: Tensor = forward(input_ids=ids).logits[0].float().cpu()
    return logits


def difference_when_reloaded(
    chosen: ChosenModel, folder: Path, expected: "Tensor", what: str, device: str = "cpu"
) -> float:
    """By how much the logits of a saved folder differ from those expected.

    Raises:
        SpecError: by more than rounding; `what` was saved, for the message.
    """
    source = Source("folder", str(folder))
    checkpoint = Checkpoint(source, source, 0, {}, architecture=chosen.checkpoint.architecture)
    as_it_is: Any = Precision()
    saved = dataclasses.replace(chosen, checkpoint=checkpoint, quantization=as_it_is)
    difference = float((logits_of(saved.load(device)) - expected).abs().max())
    if not difference <= _CLOSE:
        raise SpecError(
            f"{what} does not survive being saved: the reloaded model's logits are "
            f"{difference:.3g} off. Quantize while loading instead"
        )
    return difference
