"""The rules that settings of a service keep, whatever the service."""

from collections.abc import Mapping, Sequence
from typing import Any

from components.backends.openai_api.credentials import refuse_credentials
from components.backends.openai_api.dialect import APIS, EXTENSIONS
from components.backends.openai_api.endings import STOP_TEXTS
from components.backends.openai_api.prefill import MODES
from pipeline.spec import require

# Keys of `model` that a tokenizer's template is written with.
OF_TEMPLATES = ("chat_template", "template_kwargs", "trust_remote_code")


def prefill_mode(prefill: str | bool) -> str:
    """One of `MODES`; YAML reads a bare yes or no as a truth value. Raises SpecError."""
    if isinstance(prefill, bool):
        prefill = "yes" if prefill else "no"
    require(prefill in MODES, "backend.prefill", f"be one of {MODES}", prefill)
    return prefill


def keys_of_model(api: str, tokenizer: str | None) -> tuple[str, ...]:
    """The keys of `model` that are read: a prompt is written here for completions alone."""
    if api != "completions":
        return ("step",)
    return ("step", "tokenizer", *(OF_TEMPLATES if tokenizer else ()))


def refuse_settings(
    api: str,
    deployment: str,
    stop_text: str,
    top_logprobs: int,
    filters: Sequence[str],
    bodies: Mapping[str, Mapping[str, Any] | None],
) -> None:
    """Refuse values out of range, and credentials in the `bodies`, by their keys.

    Raises:
        SpecError: a rule is broken.
    """
    require(api in APIS, "backend.api", f"be one of {APIS}", api)
    require(stop_text in STOP_TEXTS, "backend.stop_text", f"be one of {STOP_TEXTS}", stop_text)
    require(0 <= top_logprobs <= 20, "backend.top_logprobs", "lie in 0..20", top_logprobs)
    for name, body in bodies.items():
        refuse_credentials(f"backend.{name}", body or {})
    known = set(filters) <= set(EXTENSIONS)
    require(known, "backend.filters", f"hold some of {EXTENSIONS}", list(filters))
    require(bool(deployment), "backend.deployment", "name the service's model", deployment)
