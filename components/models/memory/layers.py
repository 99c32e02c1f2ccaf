"""What memory adds to a backbone: blocks, routers, whole layers, and the cache of their windows."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.cache_utils import DynamicCache
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaMLP

from components.models.memory.attention import MemoryAttention
from components.models.memory.routing import Window
from components.models.memory.settings import MemorySettings
from pipeline.spec import SpecError


class MemoryCache(DynamicCache):
    """Keys and values of the backbone, and the window that each layer's router has seen."""

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__(config=config)
        self.windows: dict[int, Window] = {}

    def reset(self) -> None:
        """Forget every token."""
        super().reset()
        self.windows.clear()

    def reorder_cache(self, beam_idx: Any) -> None:
        """Keep the rows that `beam_idx` names, in its order."""
        super().reorder_cache(beam_idx)
        self._keep(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows."""
        super().batch_select_indices(indices)
        self._keep(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row."""
        super().batch_repeat_interleave(repeats)
        for layer, window in self.windows.items():
            rows = torch.arange(len(window.mask), device=window.mask.device)
            self.windows[layer] = window.rows(rows.repeat_interleave(repeats))

    def _keep(self, indices: Tensor) -> None:
        self.windows = {layer: window.rows(indices) for layer, window in self.windows.items()}


class ChapterRouter(nn.Module):
    """The trained linear layer that scores chapters."""

    def __init__(self, settings: MemorySettings) -> None:
        super().__init__()
        self.router = nn.Linear(settings.hidden_size, settings.num_chapters)


class MemoryBlock(nn.Module):
    """What one layer adds to read memory."""

    def __init__(self, settings: MemorySettings, backbone: PretrainedConfig, second: bool) -> None:
        super().__init__()
        self.memory_layernorm = nn.RMSNorm(settings.hidden_size, eps=1e-6)
        self.memory_attn = MemoryAttention(settings)
        if second:
            self.post_memory_layernorm = nn.RMSNorm(settings.hidden_size, eps=1e-6)
            self.post_memory_mlp = LlamaMLP(backbone)


class LayerFromScratch(LlamaDecoderLayer):
    """A decoder layer that reads memory between self-attention and MLP, or after the MLP."""

    read: Any = None  # hidden states, the layer's input -> hidden states
    after_mlp = False

    def forward(self, hidden_states: Tensor, **arguments: Any) -> Tensor:
        """The layer's output [batch, time, width]."""
        given = hidden_states
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(given), **arguments)
        hidden = given + attended
        if not self.after_mlp:
            hidden = self.read(hidden, given)
        hidden = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return self.read(hidden, given) if self.after_mlp else hidden


def decoder_layers(backbone: nn.Module) -> nn.ModuleList:
    """The decoder layers of a causal model: its only list of as many modules as it has layers.

    Raises:
        SpecError: there is none, or there are several.
    """
    config: Any = backbone.config
    count = config.num_hidden_layers
    lists = [m for m in backbone.modules() if isinstance(m, nn.ModuleList) and len(m) == count]
    if len(lists) != 1:
        raise SpecError(
            f"the backbone {type(backbone).__name__} must have one list of {count} layers that "
            f"memory can be added to, and has {len(lists)}"
        )
    return lists[0]
