"""What vLLM is told of a checkpoint, and what of a model's keys it cannot honour."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, GenerationConfig, PretrainedConfig

from components.backends.hf.model_facts import end_ids_of
from components.backends.vllm_engine.arguments import adapter_folder, engine_arguments
from components.decoding.prompt_encoder import PromptEncoder
from components.models.checkpoint import Checkpoint
from components.models.source import Source
from pipeline.spec import ModelSpec, require


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model that vLLM can be started with.

    `arguments` are those of `AsyncEngineArgs`, `adapter` the folder of a LoRA adapter, `vocabulary`
    the number of ids that the model embeds, `end_ids` those that end its turn.
    """

    arguments: Mapping[str, Any]
    adapter: str | None
    vocabulary: int
    end_ids: frozenset[int]


def prepared(
    options: Mapping[str, Any],
    spec: ModelSpec,
    checkpoint: Checkpoint,
    dtype: str,
    encoder: PromptEncoder,
) -> Prepared:
    """As `Prepared` says.

    Args:
        options: of the run, under `backend.engine`.
        spec: of the run.
        checkpoint: a prepared one, whose weights Transformers can read.
        dtype: of the weights.
        encoder: of the checkpoint's tokenizer.

    Raises:
        SpecError: vLLM has no class for the model, or an adapter does not fit.
    """
    rule = "be null with backend=vllm, which has model classes of its own (backend=hf runs this)"
    require(checkpoint.architecture is None, "model.architecture", rule, checkpoint.architecture)
    rule = "be false with backend=vllm, which computes an adapter beside the weights"
    unmerged = checkpoint.adapter is None or not spec.merge_adapter
    require(unmerged, "model.merge_adapter", rule, spec.merge_adapter)
    weights = checkpoint.weights
    config = AutoConfig.from_pretrained(
        weights.location, revision=weights.revision, trust_remote_code=spec.trust_remote_code
    )
    drawable = max(encoder.tokenizer.get_vocab().values()) + 1
    return Prepared(
        arguments=engine_arguments(options, spec, checkpoint, dtype, drawable),
        adapter=str(adapter_folder(checkpoint)) if checkpoint.adapter else None,
        vocabulary=int(config.get_text_config().vocab_size),
        end_ids=encoder.end_ids(_declared_ends(weights, config)),
    )


def refuse_model(model: ModelSpec) -> None:
    """Refuse keys of the model that vLLM would ignore. Raises SpecError."""
    rule = "be sdpa, the default, with backend=vllm: it has backend.engine.attention_backend"
    chosen = model.attn_implementation
    require(chosen == "sdpa", "model.attn_implementation", rule, chosen)
    for name in ("routing", "routing_window"):
        rule = "be null with backend=vllm, which runs no model with a memory"
        require(getattr(model, name) is None, f"model.{name}", rule, getattr(model, name))


def refuse_device(name: str) -> None:
    """Refuse what is no device; whether it is there is seen when the copy is loaded."""
    try:
        torch.device("cpu" if name == "auto" else name)
    except RuntimeError:
        rule = "be auto or a torch device such as cpu or cuda:1"
        require(False, "backend.score_device", rule, name)


def _declared_ends(weights: Source, config: PretrainedConfig) -> frozenset[int]:
    """The end-of-sequence ids of a checkpoint's generation config, else of its config."""
    try:
        revision = weights.revision or "main"
        declared = GenerationConfig.from_pretrained(weights.location, revision=revision)
    except OSError:
        declared = GenerationConfig.from_model_config(config)
    return end_ids_of(declared)
