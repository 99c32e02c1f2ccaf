"""What of a model and the way it is read makes a row what it is: the same for every backend."""

from typing import Any

from components.models.checkpoint import Checkpoint
from pipeline.protocols import Quantization
from pipeline.spec import ModelSpec


def model_identity(
    backend: str, spec: ModelSpec, checkpoint: Checkpoint, quantization: Quantization
) -> dict[str, Any]:
    """Contents of checkpoint, tokenizer and template, precision, and how prompts are cut.

    Args:
        backend: the backend's stable word.
        spec: as the run has it.
        checkpoint: what `components.models.checkpoint.resolve` found for it.
        quantization: the type of the weights.
    """
    precision = quantization.identity()
    if precision["dtype"] == "checkpoint":  # quantization=none is the type it was saved in
        precision["dtype"] = checkpoint.dtype or "checkpoint"
    routing = {"routing": spec.routing, "routing_window": spec.routing_window}
    return {
        **checkpoint.identity,
        **precision,
        "backend": backend,
        "model.step": checkpoint.step,
        "template_kwargs": dict(spec.template_kwargs),
        "max_length": spec.max_length,
        "truncation_side": spec.truncation_side,
        **{f"model.{name}": value for name, value in routing.items() if value is not None},
        **({} if spec.merge_adapter else {"model.merge_adapter": False}),
    }
