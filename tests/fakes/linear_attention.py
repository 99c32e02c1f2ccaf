"""A tiny causal model whose only memory is a state of fixed size: linear attention."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.generation.utils import GenerationMixin
from transformers.modeling_outputs import CausalLMOutput

from components.decoding.recurrent_model import StateShape


class LinearAttentionConfig(PretrainedConfig):
    model_type = "toy_linear_attention"

    def __init__(
        self, vocab_size: int = 49152, hidden_size: int = 32, layers: int = 2, **kwargs: Any
    ) -> None:
        self.vocab_size, self.hidden_size, self.num_hidden_layers = vocab_size, hidden_size, layers
        super().__init__(**{"tie_word_embeddings": False, **kwargs})


class LinearAttentionModel(PreTrainedModel, GenerationMixin):
    config_class = LinearAttentionConfig
    base_model_prefix = ""
    main_input_name = "input_ids"
    _is_stateful = True

    def __init__(self, config: LinearAttentionConfig) -> None:
        super().__init__(config)
        size = config.hidden_size
        self.embed = nn.Embedding(config.vocab_size, size)
        self.mixers = nn.ModuleList(
            nn.Linear(size, 3 * size, bias=False) for _ in range(config.num_hidden_layers)
        )
        self.head = nn.Linear(size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def state_shapes(self) -> Sequence[StateShape]:
        size = self.config.hidden_size
        return [StateShape((size, size)) for _ in self.mixers]

    def advance(self, input_ids: Tensor, positions: Tensor, states: Sequence[Tensor]) -> Tensor:
        mask = torch.ones_like(input_ids)
        return self._logits(self._hidden(input_ids, positions, mask, states)[:, -1])

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        **_: Any,
    ) -> CausalLMOutput:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        positions = (mask.cumsum(-1) - 1).clamp(min=0) if position_ids is None else position_ids
        size = self.config.hidden_size
        states = [torch.zeros(len(input_ids), size, size) for _ in self.mixers]
        return CausalLMOutput(logits=self._logits(self._hidden(input_ids, positions, mask, states)))

    def _hidden(
        self, ids: Tensor, positions: Tensor, mask: Tensor, states: Sequence[Tensor]
    ) -> Tensor:
        x = self.embed(ids) * (1 + 0.1 * torch.cos(positions.float()))[..., None]
        for mixer, state in zip(self.mixers, states, strict=True):
            query, key, value = mixer(x).chunk(3, dim=-1)
            key = key * mask[..., None]
            out = []
            for t in range(ids.shape[1]):
                state.add_(key[:, t, :, None] * value[:, t, None, :])
                out.append(torch.einsum("nk,nkv->nv", query[:, t], state))
            x = nn.functional.layer_norm(x + torch.stack(out, 1), x.shape[-1:])
        return x

    def _logits(self, x: Tensor) -> Tensor:
        return 3 * self.head(x)


AutoConfig.register("toy_linear_attention", LinearAttentionConfig, exist_ok=True)
AutoModelForCausalLM.register(LinearAttentionConfig, LinearAttentionModel, exist_ok=True)
