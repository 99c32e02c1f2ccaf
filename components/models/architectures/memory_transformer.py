"""Transformers with a learned memory ("Mixture of Chapters"): adapters of a backbone, or whole.

A layer that reads memory adds `o(attention(norm(x), memory))` to its hidden states x. In an adapter
of a pretrained backbone x is the decoder layer's output; in a model trained from scratch it is what
self-attention leaves (variant A), or what the MLP leaves, followed by a second MLP (variant B).
With chapters, a router per layer says which of them are read; what it sees is the layer's output in
an adapter and its input in a model from scratch.

Cached decoding equals one full forward pass where there are no chapters, and with token routing.
The other strategies route on context, so that by definition it does not:
`components/models/memory/routing.py` says what each of them pools.
"""

import functools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.generation.utils import GenerationMixin

from components.decoding.carrying_model import Carried
from components.models.architectures.outputs import CACHE, output
from components.models.memory.attention import MemoryAttention
from components.models.memory.bank import bank_of
from components.models.memory.config import MemoryTransformerConfig
from components.models.memory.layers import (
    ChapterRouter,
    LayerFromScratch,
    MemoryBlock,
    MemoryCache,
    decoder_layers,
)
from components.models.memory.routing import (
    Choice,
    RollingWindowRouter,
    Selection,
    SequenceLevelRouter,
    SequenceRollingRouter,
    Window,
)
from components.models.memory.row_windows import RowWindows


class Call(NamedTuple):
    """What the memory layers must know of the forward call under way."""

    mask: Tensor | None = None  # of the present tokens [batch, time]; None: all are tokens
    windows: dict[int, Window] | RowWindows | None = None  # None: nothing is kept
    prefill: bool = True  # nothing has been cached yet
    rows: int | None = None  # as many rows lie one after another in a batch of 1


class MemoryTransformerForCausalLM(PreTrainedModel, GenerationMixin):
    """A backbone with memory: `backbone`, `memory_banks`, `routers` and `memory_adapters`."""

    config_class = MemoryTransformerConfig
    base_model_prefix = "backbone"
    _supports_attention_backend = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _keep_in_fp32_modules_strict = ["memory_scales", "A_scales", "B_scales"]  # of quantized banks

    def __init__(self, config: MemoryTransformerConfig) -> None:
        super().__init__(config)
        settings = config.settings()
        own = config.backbone_config
        own._attn_implementation = config._attn_implementation
        self.settings = settings
        self.choice = Choice.of(settings)
        self.backbone = AutoModelForCausalLM.from_config(own)
        banks = sorted(set(settings.banks.values()))
        self.memory_banks = nn.ModuleDict({str(bank): bank_of(settings) for bank in banks})
        routed = settings.layers if settings.use_chapters else ()
        self.routers = nn.ModuleDict({str(layer): ChapterRouter(settings) for layer in routed})
        second = not config.adapter and settings.memory_block_variant == "B"
        self.memory_adapters = nn.ModuleDict(
            {str(layer): MemoryBlock(settings, own, second) for layer in settings.layers}
        )
        self._here = threading.local()  # threads may compute rows of their own
        self._attach(own)
        # A row's chapters may hang on its earlier tokens, which keys and values do not hold.
        self._is_stateful = settings.routes_by_context
        self.post_init()

    def _attach(self, own: Any) -> None:
        layers = decoder_layers(self.backbone)
        for number in self.settings.layers:
            read = functools.partial(self._read, number)
            if self.config.adapter:
                layers[number].register_forward_hook(functools.partial(_after, read))
                continue
            layer = LayerFromScratch(own, number)
            object.__setattr__(layer, "read", read)
            layer.after_mlp = self.settings.memory_block_variant == "B"
            layers[number] = layer

    def _init_weights(self, module: Any) -> None:
        spread = 0.02
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=spread)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=spread)
        elif isinstance(module, nn.RMSNorm) or "RMSNorm" in type(module).__name__:
            nn.init.ones_(module.weight)
        for name in ("memory", "A", "B"):
            weight = getattr(module, name, None)
            if isinstance(weight, nn.Parameter):
                nn.init.normal_(weight, std=spread)

    def get_input_embeddings(self) -> nn.Module:
        """The backbone's table of token embeddings."""
        return self.backbone.get_input_embeddings()

    def get_output_embeddings(self) -> nn.Module | None:
        """The backbone's language-model head."""
        return self.backbone.get_output_embeddings()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        labels: Tensor | None = None,
        **arguments: Any,
    ) -> Any:
        """Logits [batch, time, vocabulary] of `input_ids` [batch, time].

        `attention_mask` [batch, past + time] is 0 for padding, which no router sees.
        """
        keep = self.config.use_cache if use_cache is None else use_cache
        given = past_key_values if cache is None else cache
        own = self._cache(given) if keep or given is not None else None
        mask = None
        if attention_mask is not None and attention_mask.dim() == 2:
            mask = attention_mask[:, -input_ids.shape[1] :]
        prefill = own is None or own.get_seq_length() == 0
        passed = {} if own is None else {CACHE: own}
        rows: Sequence[Carried] | None = getattr(self._here, "rows", None)
        call = Call(mask, None if own is None else own.windows, prefill)
        if rows is not None:
            call = Call(None, RowWindows(rows), not any(rows), len(rows))
        with self._calling(call):
            result = self.backbone(
                input_ids=input_ids,
                attention_mask=attention_mask,
                position_ids=position_ids,
                use_cache=keep,
                **passed,
                **arguments,
            )
        loss = None
        if labels is not None:
            flat = result.logits[:, :-1].float().flatten(0, 1)
            loss = F.cross_entropy(flat, labels[:, 1:].flatten())
        return output(result.logits, own if keep else None, loss)

    def _cache(self, given: Cache | None) -> MemoryCache:
        """The cache of a call; `generate` brings an empty one of another kind at first."""
        if isinstance(given, MemoryCache):
            return given
        if given is not None and given.get_seq_length():
            raise ValueError("a memory model keeps windows too: pass the cache that it returned")
        return MemoryCache(self.backbone.config)

    @property
    def chooses_on_host(self) -> bool:
        """Whether steps wait for the device in the middle: to read every token's own chapters."""
        settings = self.settings
        return settings.use_chapters and settings.routing_strategy_inference == "token"

    @property
    def carries(self) -> bool:
        """As `CarryingModel`: a token's chapters may hang on those before it."""
        return self.settings.routes_by_context

    @property
    def carried_bytes(self) -> int:
        """As `CarryingModel`: a window of hidden states for every layer that routes by one."""
        settings = self.settings
        kept = settings.routing_window_size * settings.hidden_size * self.dtype.itemsize
        return kept * len(self.routers) if settings.keeps_windows else 0

    @contextmanager
    def carrying(self, rows: Sequence[Carried]) -> Iterator[None]:
        """As `CarryingModel`: every row carries its routers' windows."""
        self._here.rows = rows
        try:
            yield
        finally:
            self._here.rows = None

    @contextmanager
    def _calling(self, call: Call) -> Iterator[None]:
        self._here.call = call
        try:
            yield
        finally:
            self._here.call = Call()

    def _read(self, layer: int, hidden: Tensor, routed_on: Tensor) -> Tensor:
        """Hidden states [batch, time, width] with what a layer reads from memory added."""
        call: Call = getattr(self._here, "call", Call())
        if call.rows is not None and hidden.shape[0] != call.rows:
            split = (call.rows, -1, hidden.shape[-1])
            return self._read(layer, hidden.reshape(split), routed_on.reshape(split)).view_as(
                hidden
            )
        block: Any = self.memory_adapters[str(layer)]
        normed = block.memory_layernorm(hidden)
        bank: Any = self.memory_banks[str(self.settings.banks[layer])]
        attention = block.memory_attn
        if not self.settings.use_chapters:
            added = attention(normed, bank(dtype=normed.dtype).unsqueeze(0))
        elif self.settings.routing_strategy_inference == "token":
            added = self._by_token(layer, attention, normed, routed_on, bank)
        else:
            chosen = self._select(layer, routed_on)
            added = attention(normed, self._mixed(bank, chosen, normed.dtype))
        hidden = hidden + added
        if hasattr(block, "post_memory_mlp"):
            hidden = hidden + block.post_memory_mlp(block.post_memory_layernorm(hidden))
        return hidden

    def _by_token(
        self, layer: int, attention: MemoryAttention, normed: Tensor, routed_on: Tensor, bank: Any
    ) -> Tensor:
        routed = self.choice.routed(self._router(layer)(routed_on))
        shared = None
        if self.choice.shared:
            first = torch.arange(self.choice.shared, device=normed.device)
            shared = bank(first, normed.dtype).flatten(0, 1).unsqueeze(0)
        weights = routed.weights * self.choice.scale
        return attention.by_token(normed, shared, bank, routed.chapters, weights)

    def _select(self, layer: int, states: Tensor) -> Selection:
        """The chapters that a layer reads for the tokens of this call, by the model's strategy."""
        call: Call = getattr(self._here, "call", Call())
        router, size = self._router(layer), self.settings.routing_window_size
        strategy = self.settings.routing_strategy_inference
        mask = None if call.mask is None else call.mask.bool()
        if strategy == "sequence-rolling":
            return SequenceRollingRouter(router, self.choice, size).route(states, mask)
        whole = SequenceLevelRouter(router, self.choice)
        if strategy == "sequence" or call.windows is None:
            return whole.route(states, mask)
        rolling = RollingWindowRouter(router, self.choice, size)
        rolling.cache = call.windows.get(layer)
        chosen = rolling.route(states, mask)
        assert rolling.cache is not None
        call.windows[layer] = rolling.cache
        return whole.route(states, mask) if strategy == "hybrid" and call.prefill else chosen

    def _router(self, layer: int) -> nn.Linear:
        router: Any = self.routers[str(layer)]
        linear: nn.Linear = router.router
        return linear

    def _mixed(self, bank: Any, chosen: Selection, dtype: torch.dtype) -> Tensor:
        """The chosen chapters' tokens [batch, tokens, width], times their chapters' weights."""
        tokens = bank(chosen.chapters, dtype)  # [batch, chapters, length, width]
        shared = self.choice.shared
        if self.settings.normalize_shared_routed_before_mixing and shared:
            parts = (tokens[:, :shared], tokens[:, shared:])
            tokens = torch.cat([self._normalised(part) for part in parts], dim=1)
        weighted = tokens * chosen.weights[..., None, None].to(tokens.dtype)
        return weighted.flatten(1, 2)

    def _normalised(self, tokens: Tensor) -> Tensor:
        shape, eps = tokens.shape[-1:], self.settings.shared_routed_norm_eps
        if self.settings.shared_routed_norm_type == "rms":
            return F.rms_norm(tokens, shape, eps=eps)
        return F.layer_norm(tokens, shape, eps=eps)


def _after(read: Any, layer: nn.Module, given: Any, result: Any) -> Any:
    """A forward hook: memory is read on a layer's output."""
    if isinstance(result, tuple):
        return (read(result[0], result[0]), *result[1:])
    return read(result, result)


AutoConfig.register("memory_transformer", MemoryTransformerConfig)
AutoModelForCausalLM.register(MemoryTransformerConfig, MemoryTransformerForCausalLM)
