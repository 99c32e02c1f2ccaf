"""What a forward call takes and returns under the names of the installed Transformers."""

from dataclasses import fields
from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast

# Transformers 5.24 calls the cache `cache`; before, it was `past_key_values`.
CACHE = (
    "cache"
    if any(field.name == "cache" for field in fields(CausalLMOutputWithPast))
    else "past_key_values"
)


def output(logits: Tensor, cache: Cache | None, loss: Tensor | None = None) -> Any:
    """The result of a causal language model's forward call."""
    values: dict[str, Any] = {"loss": loss, "logits": logits, CACHE: cache}
    return CausalLMOutputWithPast(**values)


def cache_of(result: Any) -> Cache | None:
    """The cache in what a forward call returned."""
    cache: Cache | None = result[CACHE] if CACHE in result else None
    return cache
