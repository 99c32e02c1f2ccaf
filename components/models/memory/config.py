"""The configuration of a memory-augmented transformer: its backbone's, and the memory's."""

from typing import Any

from transformers import AutoConfig, PretrainedConfig

from components.models.memory.settings import MemorySettings
from pipeline.spec import SpecError

_MIRRORED = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)


class MemoryTransformerConfig(PretrainedConfig):
    """The backbone's own config, and the original's `memory` group.

    `adapter` tells an adapter of a pretrained backbone from a model trained whole; `base` is what
    its training called that backbone.
    """

    model_type = "memory_transformer"

    def __init__(
        self,
        backbone: dict[str, Any] | None = None,
        memory: dict[str, Any] | None = None,
        adapter: bool = True,
        base: str | None = None,
        use_cache: bool = True,
        **kwargs: Any,
    ) -> None:
        self.backbone = backbone or {"model_type": "llama"}
        self.memory = memory or {}
        self.adapter = adapter
        self.base = base
        self.use_cache = use_cache
        own = self.backbone_config
        kwargs.setdefault("tie_word_embeddings", own.tie_word_embeddings)
        for name in _MIRRORED:
            if getattr(own, name, None) is not None:
                kwargs.setdefault(name, getattr(own, name))
        super().__init__(**kwargs)

    @property
    def backbone_config(self) -> PretrainedConfig:
        """The config of the backbone, anew."""
        values = dict(self.backbone)
        return AutoConfig.for_model(values.pop("model_type"), **values)

    def settings(self) -> MemorySettings:
        """The `memory` group, checked. Raises SpecError for a key or a value that no model has."""
        own = self.backbone_config
        return MemorySettings.of(
            self.memory,
            hidden_size=own.hidden_size,
            num_layers=own.num_hidden_layers,
            num_heads=own.num_attention_heads,
            num_kv_heads=getattr(own, "num_key_value_heads", None) or own.num_attention_heads,
        )

    def set_routing(self, strategy: str | None, window: int | None) -> None:
        """Route by another strategy or window than the checkpoint says; None leaves it.

        Raises:
            SpecError: the model has no chapters, or there is no such strategy.
        """
        chosen = {"routing_strategy_inference": strategy, "routing_window_size": window}
        chosen = {key: value for key, value in chosen.items() if value is not None}
        if chosen and not self.settings().use_chapters:
            raise SpecError("model.routing must be null: the model has no chapters to route to")
        self.memory = {**self.memory, **chosen}
        self.settings()
