"""Which tensors of a checkpoint became weights of the model, and which did not."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.spec import SpecError

_SHOWN = 4  # names per sentence


def refuse_incomplete(loading: Mapping[str, Any], location: str) -> None:
    """Refuse a model some of whose weights are not those of its checkpoint.

    Transformers draws missing weights at random and drops what it does not know.

    Args:
        loading: what `from_pretrained(..., output_loading_info=True)` returns beside the model.
            Tied weights, which need no tensor of their own, are not among its missing keys.
        location: where the checkpoint lies, for the message.

    Raises:
        SpecError: a tensor is missing, unexpected, or of another shape; its name is in the message.
    """
    mismatched = [
        f"{name} (file {list(file)}, model {list(model)})"
        for name, file, model in loading["mismatched_keys"]
    ]
    faults = {
        "lacks": loading["missing_keys"],
        "has in another shape": mismatched,
        "has and the model does not know": loading["unexpected_keys"],
    }
    sentences = [f"it {verb} {_listed(names)}" for verb, names in faults.items() if names]
    sentences += loading["error_msgs"]
    if sentences:
        rule = "name a checkpoint with exactly the weights that its config.json describes"
        raise SpecError(f"model.path must {rule}; of {location}: {'; '.join(sentences)}")


def tensors_hash(tensors: Mapping[str, Any]) -> str:
    """SHA-256 over the names, types and bytes of tensors, whatever files they lie in."""
    import torch

    content = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        content.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        content.update(tensor.flatten().view(torch.uint8).numpy().data)
    return content.hexdigest()


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = len(ordered) - _SHOWN
    return ", ".join(ordered[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
