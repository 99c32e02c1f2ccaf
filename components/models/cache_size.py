"""The memory of one sequence's cache: keys and values by token, or a state of fixed size."""

from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from components.decoding.recurrent_model import RecurrentModel

_SLIDING = ("sliding_attention", "chunked_attention")
# Layers that keep something else than keys and values, which only their code knows.
_KNOWN = ("full_attention", *_SLIDING)
LENGTHS = (1024, 8192, 32768)  # tokens


def cache_report(model: PreTrainedModel, token_bytes: int | None = None) -> dict[str, Any]:
    """Bytes of the cache of one sequence, by its tokens; `null` with a reason where not known.

    `token_bytes` are those of a decoder that keeps as many for every token. A sequence longer than
    the model's positions is left out, and one of just these is there.
    """
    config = model.config.get_text_config()
    context = getattr(config, "max_position_embeddings", None)
    lengths = sorted({n for n in (*LENGTHS, context) if n and (context is None or n <= context)})
    if token_bytes is not None:
        return {"bytes_of_sequence": {str(length): length * token_bytes for length in lengths}}
    try:
        sizes = {str(length): cache_bytes(model, length) for length in lengths}
    except NotImplementedError as error:
        return {"bytes_of_sequence": None, "unknown_because": str(error)}
    return {"bytes_of_sequence": sizes}


def cache_bytes(model: PreTrainedModel, length: int) -> int:
    """Bytes that Transformers' cache, or the state, of one sequence of `length` tokens takes.

    A layer with a sliding window keeps no more than its window, less one token that the next one
    brings. Heads that share keys keep them once. Multi-head latent attention keeps its latent and
    the rotated part of the keys, as in Transformers 5.23.

    Raises:
        NotImplementedError: the model keeps something else; the message says what.
    """
    if isinstance(model, RecurrentModel):
        return sum(shape.bytes for shape in model.state_shapes())
    config = model.config.get_text_config()
    layers = _layers(config)
    per_token = _token_bytes(config, model.dtype.itemsize)
    return sum(_kept(config, kind, length) * per_token for kind in layers)


def _layers(config: PreTrainedConfig) -> list[str]:
    """The kind of every layer that keeps keys and values of its own."""
    count = getattr(config, "num_hidden_layers", 0)
    given = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    slides = window is not None and getattr(config, "use_sliding_window", True)
    kinds = list(given) if given else ["sliding_attention" if slides else "full_attention"] * count
    unknown = sorted({kind for kind in kinds if kind not in _KNOWN})
    if unknown or not hasattr(config, "num_attention_heads"):
        what = ", ".join(unknown) or "no attention"
        raise NotImplementedError(f"{config.model_type} has layers of {what}")
    shared = getattr(config, "num_kv_shared_layers", None) or 0
    return kinds[: count - shared]


def _kept(config: PreTrainedConfig, kind: str, length: int) -> int:
    """Tokens that a layer of a kind keeps of a sequence."""
    name = "attention_chunk_size" if kind == "chunked_attention" else "sliding_window"
    window = getattr(config, name, None) if kind in _SLIDING else None
    return length if window is None else min(length, window - 1)


def _token_bytes(config: PreTrainedConfig, itemsize: int) -> int:
    """Bytes of one token's keys and values in one layer."""
    if getattr(config, "kv_lora_rank", None) is not None:
        return int((config.kv_lora_rank + config.qk_rope_head_dim) * itemsize)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(heads * 2 * size * itemsize)
