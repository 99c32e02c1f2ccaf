"""The `memory` group of a memory-augmented model's configuration, checked."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from pipeline.spec import SpecError

STRATEGIES = ("sequence", "sequence-rolling", "rolling", "token", "hybrid")
_PLACEMENTS = ("all", "first_k", "last_k", "every_n", "custom", "none")
_SHARING = ("shared", "per_layer", "every_k_layers")
# Keys of training, of kernels and of adapters that change nothing once the weights are loaded.
_WITHOUT_EFFECT = frozenset(
    (
        "memory_dropout",
        "routing_strategy_train",
        "token_routing_kernel_version",
        "use_load_balance_loss",
        "load_balance_coefficient",
        "use_auxiliary_loss",
        "auxiliary_loss_coefficient",
        "use_z_loss",
        "z_loss_coefficient",
        "memory_gradient_checkpointing",
        "wo_init_zero",
        "memory_init_std",
        "lora_dropout",
        "use_memory_adapter",
        "use_both_memory_and_lora",
    )
)


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """What a memory-augmented model adds to its backbone.

    The keys are those of the original's YAML; `hidden_size`, `num_heads` and `num_kv_heads` come
    from the backbone.
    """

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    vanilla_mode: bool = False
    num_memory_tokens: int = 1024
    memory_dim: int | None = None
    memory_num_heads: int | None = None
    memory_num_kv_heads: int | None = None
    memory_layer_placement: str = "all"
    memory_layer_k: int = 5
    memory_layer_n: int = 3
    memory_layer_indices: tuple[int, ...] | None = None
    memory_sharing: str = "shared"
    memory_sharing_k: int = 2
    memory_block_variant: str = "A"
    use_low_rank_memory: bool = False
    memory_rank: int = 64
    low_rank_mode: str = "factorized"
    use_low_rank_projections: bool = False
    projection_rank: int = 64
    use_chapters: bool = False
    num_chapters: int = 100
    top_k_chapters: int = 20
    num_shared_chapters: int = 0
    routed_scaling_factor: float = 1.0
    normalize_shared_routed_before_mixing: bool = False
    shared_routed_norm_type: str = "rms"
    shared_routed_norm_eps: float = 1e-6
    routing_strategy_inference: str = "sequence"
    routing_window_size: int = 128
    quantize_memory: bool = False
    memory_quant_bits: int = 8
    use_lora: bool = False
    lora_rank: int = 16
    lora_alpha: float = 32.0
    lora_targets: tuple[str, ...] = ("q_proj", "v_proj")

    @classmethod
    def of(cls, given: Mapping[str, Any], **backbone: int) -> Self:
        """The settings in a `memory` mapping.

        Raises:
            SpecError: an unknown key, or a value that no model can have.
        """
        known = {field.name for field in fields(cls)} - backbone.keys()
        unknown = sorted(set(given) - known - _WITHOUT_EFFECT)
        if unknown:
            raise SpecError(f"memory has no key {', '.join(unknown)}; it takes {sorted(known)}")
        values: dict[str, Any] = {k: value for k, value in given.items() if k in known}
        for name in ("memory_layer_indices", "lora_targets"):
            if values.get(name) is not None:
                values[name] = tuple(values[name])
        routing = values.get("routing_strategy_inference")
        if isinstance(routing, str):
            values["routing_strategy_inference"] = routing.replace("_", "-")
        return cls(**(values | backbone))

    def __post_init__(self) -> None:
        """Check what the sizes must be to each other."""
        for key, allowed in (
            ("memory_layer_placement", _PLACEMENTS),
            ("memory_sharing", _SHARING),
            ("memory_block_variant", ("A", "B")),
            ("low_rank_mode", ("factorized", "reduced_dim")),
            ("routing_strategy_inference", STRATEGIES),
            ("shared_routed_norm_type", ("rms", "layernorm")),
            ("memory_quant_bits", (4, 8)),
        ):
            value = getattr(self, key)
            _require(value in allowed, key, f"be one of {', '.join(map(str, allowed))}", value)
        self._check_attention()
        if self.use_chapters:
            self._check_chapters()

    def _check_attention(self) -> None:
        heads = self.heads
        _require(self.width % heads == 0, "memory_num_heads", f"divide {self.width}", heads)
        _require(
            heads % self.kv_heads == 0, "memory_num_kv_heads", f"divide {heads}", self.kv_heads
        )
        layers = self.layers
        inside = all(0 <= layer < self.num_layers for layer in layers)
        rule = f"be layers from 0 to {self.num_layers - 1}"
        _require(inside, "memory_layer_indices", rule, list(layers))

    def _check_chapters(self) -> None:
        count, shared = self.num_chapters, self.num_shared_chapters
        rule = f"be divided by num_chapters={count}"
        _require(
            self.num_memory_tokens % count == 0, "num_memory_tokens", rule, self.num_memory_tokens
        )
        _require(0 <= shared < count, "num_shared_chapters", f"be below {count}", shared)
        routed, top = count - shared, self.top_k_chapters
        _require(0 < top <= routed, "top_k_chapters", f"be from 1 to {routed}", top)
        _require(
            self.routing_window_size > 0,
            "routing_window_size",
            "be above 0",
            self.routing_window_size,
        )

    @property
    def heads(self) -> int:
        """Heads of the memory's attention."""
        return self.memory_num_heads or self.num_heads

    @property
    def kv_heads(self) -> int:
        """Heads of the memory's keys and values."""
        own = self.memory_num_kv_heads
        if own is None:
            own = self.heads if self.memory_num_heads else self.num_kv_heads
        return own

    @property
    def reduced(self) -> bool:
        """Whether attention to memory happens in `memory_rank` dimensions."""
        return self.use_low_rank_memory and self.low_rank_mode == "reduced_dim"

    @property
    def width(self) -> int:
        """Dimensions of attention to memory, all heads together."""
        return self.memory_rank if self.reduced else self.hidden_size

    @property
    def token_width(self) -> int:
        """Dimensions of one memory token as attention reads it."""
        return self.memory_rank if self.reduced else self.memory_dim or self.hidden_size

    @property
    def layers(self) -> tuple[int, ...]:
        """Backbone layers that attend to memory, in order."""
        count, kind = self.num_layers, self.memory_layer_placement
        if self.vanilla_mode or kind == "none":
            return ()
        k = min(self.memory_layer_k, count)
        chosen = {
            "all": range(count),
            "first_k": range(k),
            "last_k": range(count - k, count),
            "every_n": range(0, count, self.memory_layer_n),
            "custom": sorted(self.memory_layer_indices or ()),
        }
        return tuple(chosen[kind])

    @property
    def banks(self) -> dict[int, int]:
        """The bank that each memory layer reads."""
        layers = self.layers
        if self.memory_sharing == "shared":
            return dict.fromkeys(layers, 0)
        size = 1 if self.memory_sharing == "per_layer" else self.memory_sharing_k
        return {layer: number // size for number, layer in enumerate(layers)}

    @property
    def keeps_windows(self) -> bool:
        """Whether routing a token takes the hidden states of those before it."""
        return self.routing_strategy_inference in ("rolling", "hybrid")

    @property
    def routes_by_context(self) -> bool:
        """Whether a token's chapters depend on other tokens of its row."""
        routed = self.use_chapters and bool(self.layers)
        return routed and self.routing_strategy_inference != "token"


def _require(holds: bool, key: str, rule: str, value: object) -> None:
    if not holds:
        raise SpecError(f"memory.{key} must {rule}, got {value!r}")
