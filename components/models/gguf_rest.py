"""What a GGUF file says beyond the tensors that Transformers reads: scaled rotation, and the rest.

Transformers passes over tensors that it does not know and over `rope.scaling`; a model without its
biases, or without the scaling of Llama 3.1, would be another model.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.models.gguf_header import GgufHeader
from pipeline.spec import SpecError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_ROPE_FACTORS = "rope_freqs.weight"
# Stacked experts, GPT-2's head and Mamba's decay, which Transformers takes apart by other names.
_TAKEN_APART = ("_exps.", "ssm_a")
# llama.cpp stores the factors that these give, and of Llama 3.1 to 3.3 all three are the same.
_LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_CLOSE = 1e-3  # relative; the factors are stored in float32, or less


def refuse_unread(model: "PreTrainedModel", header: GgufHeader, gguf: Path) -> None:
    """Refuse a file with tensors that are no weights of the model that Transformers made of it.

    Args:
        model: the converted model.
        header: that of the whole file.
        gguf: the file, for the message.

    Raises:
        SpecError: names such tensors.
    """
    from transformers import modeling_gguf_pytorch_utils as reading

    processors: Any = reading.TENSOR_PROCESSORS
    processor = processors.get(model.config.model_type, reading.TensorProcessor)
    known = reading.get_gguf_hf_weights_map(model, processor(config=model.config.to_dict()))
    unread = [
        name
        for name in header.tensors
        if name not in {*known, _ROPE_FACTORS, "output.weight"}
        and not any(part in name for part in _TAKEN_APART)
    ]
    if unread:
        more = f" and {len(unread) - 4} more" if len(unread) > 4 else ""
        raise SpecError(
            f"model.path={gguf} has tensors that Transformers cannot read from a GGUF file: "
            f"{', '.join(unread[:4])}{more}. Take the model's safetensors folder or hub id instead"
        )


def scale_rotation(
    model: "PreTrainedModel", header: GgufHeader, factors: "torch.Tensor | None", gguf: Path
) -> None:
    """Write the file's scaling of rotary positions into the model's config.

    Args:
        model: the converted model, whose config is changed.
        header: that of the file.
        factors: the tensor `rope_freqs.weight`, of shape (half the rotated dimensions); None
            without one.
        gguf: the file, for the message.

    Raises:
        SpecError: the scaling is of a kind that is not known here.
    """
    architecture = str(header.fields.get("general.architecture"))
    if architecture == "gpt-oss":  # Transformers reads that one itself
        return
    kind = header.fields.get(f"{architecture}.rope.scaling.type") or "none"
    if factors is not None:
        _as_llama3(model.config, factors, gguf)
    elif kind == "linear":
        factor = float(header.fields.get(f"{architecture}.rope.scaling.factor") or 1)
        _set(model.config, {"rope_type": "linear", "factor": factor})
    elif kind != "none":
        raise _unknown(gguf, f"{architecture}.rope.scaling.type={kind}")


def _as_llama3(config: Any, factors: "torch.Tensor", gguf: Path) -> None:
    import torch
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    theta = float(config.rope_parameters["rope_theta"])
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    plain = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    _set(config, {"rope_type": "llama3", "factor": float(factors.max()), **_LLAMA3})
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    ours = plain / scaled
    if ours.shape != factors.shape or not torch.allclose(ours, factors.float(), rtol=_CLOSE):
        raise _unknown(gguf, f"factors in {_ROPE_FACTORS} that are not those of Llama 3")


def _set(config: Any, scaling: dict[str, Any]) -> None:
    config.rope_parameters = {**config.rope_parameters, **scaling}


def _unknown(gguf: Path, what: str) -> SpecError:
    return SpecError(
        f"model.path={gguf} scales its rotary positions in a way that cannot be read from a GGUF "
        f"file, {what}. Take the model's safetensors folder or hub id instead"
    )
