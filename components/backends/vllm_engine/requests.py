"""A request's sampling as vLLM takes it, and what of it vLLM cannot honour."""

from collections.abc import Collection
from typing import Any

from pipeline.protocols import FILTERS
from pipeline.spec import Sampling, require

HONOURED = (
    *FILTERS,
    "presence_penalty",
    "frequency_penalty",
    "min_new_tokens",
    "logit_bias",
)
# What changes logits before a logits processor of ours sees them, by vLLM's model runner.
_BEFORE_FIRST = ("min_new_tokens", "logit_bias")
_BEFORE_SECOND = (*_BEFORE_FIRST, "repetition_penalty", "presence_penalty", "frequency_penalty")
_LOWEST = 0.01  # temperatures below are raised to it by vLLM


def refuse_what_vllm_changes(sampling: Sampling) -> None:
    """Refuse a temperature that vLLM would replace by another. Raises SpecError."""
    chosen = sampling.temperature
    rule = f"be 0 or at least {_LOWEST} with backend=vllm, which raises what lies between"
    require(chosen == 0 or chosen >= _LOWEST, "sampling.temperature", rule, chosen)


def changes_before_measuring(sampling: Sampling, second_runner: bool) -> list[str]:
    """Keys of what changes the logits that our logits processor would measure."""
    off = Sampling()
    names = _BEFORE_SECOND if second_runner else _BEFORE_FIRST
    return [f"sampling.{name}" for name in names if getattr(sampling, name) != getattr(off, name)]


def sampling_fields(
    sampling: Sampling, end_ids: Collection[int], cap: int, seed: int
) -> dict[str, Any]:
    """Fields of vLLM's `SamplingParams`.

    Stop strings are not among them: they are found in this process, by the text of the ids that
    come, so that they mean the same as with every other backend.

    Args:
        sampling: temperature, filters and penalties.
        end_ids: ids that end the turn.
        cap: ids to draw at most.
        seed: 64 bits; vLLM takes 63.
    """
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "min_tokens": min(sampling.min_new_tokens, cap),
        "logit_bias": sampling.logit_bias,
        "seed": seed & ((1 << 63) - 1),
        "max_tokens": cap,
        "stop_token_ids": sorted(end_ids),
        "ignore_eos": True,  # the ids above are all that end it
        "detokenize": False,
    }
