"""BDH, the Baby Dragon Hatchling (Kosowski et al. 2025, arXiv 2509.26507), for Transformers.

One set of weights is applied `num_hidden_layers` times. With LN the parameter-free layer norm:

    x = LN(embed[tokens])                                   [batch, time, D]
    repeat: s = relu(x @ encoder)                           [batch, heads, time, N], mostly zero
            q = rotate(s, position)
            a_t = sum over earlier tokens u < t of (q_t . q_u) x_u
            y = relu(LN(a) @ encoder_v)
            x = LN(x + LN(concat_heads(s * y) @ decoder))
    logits = x @ lm_head

Attention has no softmax, so it is exactly a recurrence over a state of fixed size,
`a_t = q_t @ S`, then `S += outer(q_t, x_t)` with S [heads, N, D] per layer: decoding a token costs
the same at every position.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.generation.utils import GenerationMixin

from components.decoding.recurrent_model import StateShape
from components.models.architectures.outputs import output

CHUNK = 256  # tokens of a prompt that attend to each other directly; the rest is in the state
SPARSE = 0.15  # share of active neurons below which one token on a CPU reads those alone


class BdhConfig(PretrainedConfig):
    """The sizes of a BDH model; a neuron count of `mlp_internal_dim_multiplier * D // heads` each.

    `n_layer`, `n_embd` and `n_head`, the names of the original, are read as well.
    """

    model_type = "bdh"
    attribute_map = {
        "n_layer": "num_hidden_layers",
        "n_embd": "hidden_size",
        "n_head": "num_attention_heads",
    }

    def __init__(
        self,
        num_hidden_layers: int = 6,
        hidden_size: int = 256,
        num_attention_heads: int = 4,
        mlp_internal_dim_multiplier: int = 128,
        vocab_size: int = 256,
        dropout: float = 0.1,
        rope_theta: float = 65536.0,
        layer_norm_eps: float = 1e-5,
        initializer_range: float = 0.02,
        use_cache: bool = True,
        **kwargs: Any,
    ) -> None:
        self.num_hidden_layers = num_hidden_layers
        self.hidden_size = hidden_size
        self.num_attention_heads = num_attention_heads
        self.mlp_internal_dim_multiplier = mlp_internal_dim_multiplier
        self.vocab_size = vocab_size
        self.dropout = dropout
        self.rope_theta = rope_theta
        self.layer_norm_eps = layer_norm_eps
        self.initializer_range = initializer_range
        self.use_cache = use_cache
        kwargs.setdefault("tie_word_embeddings", False)
        super().__init__(**kwargs)

    @property
    def num_neurons(self) -> int:
        """N, the neurons of one head."""
        return self.mlp_internal_dim_multiplier * self.hidden_size // self.num_attention_heads


class BdhState(CacheLayerMixin):
    """One layer's recurrent state [batch, heads, N, D] in float32, and how many tokens it holds."""

    is_compileable = False
    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.state: Tensor | None = None
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Make an empty state for queries [batch, heads, time, N] and values [batch, time, D]."""
        batch, heads, _, neurons = key_states.shape
        shape = (batch, heads, neurons, value_states.shape[-1])
        self.state = torch.zeros(shape, device=key_states.device)
        self.device, self.dtype = key_states.device, torch.float32
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Attend with `key_states` and take them in; returns a [batch, heads, time, D], the state.

        Tokens whose keys are zero (padding) leave no trace.
        """
        if self.state is None:
            self.lazy_initialization(key_states, value_states)
        assert self.state is not None
        attended = attend(key_states, value_states, self.state)
        self.length += key_states.shape[2]
        return attended, self.state

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """How many positions a mask would cover, and from where."""
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        """Tokens taken in so far."""
        return self.length

    def get_max_length(self) -> int:
        """There is no longest sequence."""
        return -1

    get_max_cache_shape = get_max_length

    def reset(self) -> None:
        """Forget every token."""
        self.length = 0
        if self.state is not None:
            self.state.zero_()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep the rows that `beam_idx` names, in its order."""
        if self.state is not None:
            self.state = self.state.index_select(0, beam_idx.to(self.state.device))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row."""
        if self.state is not None:
            self.state = self.state.repeat_interleave(repeats, dim=0)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows."""
        self.reorder_cache(indices)


class BdhForCausalLM(PreTrainedModel, GenerationMixin):
    """BDH with its language-model head. Parameters carry the original's names and shapes.

    `embed.weight` [vocabulary, D], `encoder` and `encoder_v` [heads, D, N], `decoder`
    [heads * N, D] with the heads one after another, `lm_head` [D, vocabulary].
    """

    config_class = BdhConfig
    base_model_prefix = ""
    main_input_name = "input_ids"
    _is_stateful = True
    _no_split_modules: list[str] = []
    # Rotary frequencies follow from the config and stay float32; `lm_gate` was never used.
    _keys_to_ignore_on_load_unexpected = [r"^attn\.freqs$", r"^lm_gate$"]

    def __init__(self, config: BdhConfig) -> None:
        super().__init__(config)
        heads, neurons, size = config.num_attention_heads, config.num_neurons, config.hidden_size
        self.embed = nn.Embedding(config.vocab_size, size)
        self.encoder = nn.Parameter(torch.empty(heads, size, neurons))
        self.encoder_v = nn.Parameter(torch.empty(heads, size, neurons))
        self.decoder = nn.Parameter(torch.empty(heads * neurons, size))
        self.lm_head = nn.Parameter(torch.empty(size, config.vocab_size))
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        spread = self.config.initializer_range
        if module is self:
            for weight in (self.encoder, self.encoder_v, self.decoder, self.lm_head):
                nn.init.normal_(weight, std=spread)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=spread)

    def get_input_embeddings(self) -> nn.Module:
        """The table of token embeddings."""
        return self.embed

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the table of token embeddings."""
        self.embed = value

    def get_output_embeddings(self) -> None:
        """None: the head is a bare parameter, as in the original."""
        return None

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        labels: Tensor | None = None,
        **_: Any,
    ) -> Any:
        """Logits [batch, time, vocabulary] of `input_ids` [batch, time].

        `attention_mask` [batch, past + time] is 0 for padding, which leaves no trace in the state.
        With `use_cache` the state of all tokens so far comes back as the cache, which Transformers
        calls `cache` from 5.24 on and `past_key_values` before.
        """
        keep = self.config.use_cache if use_cache is None else use_cache
        given = past_key_values if cache is None else cache
        cache = given if given is not None and _is_ours(given) else self.new_cache()
        past = cache.get_seq_length()
        mask = None if attention_mask is None else attention_mask[:, -input_ids.shape[1] :]
        if position_ids is None:
            position_ids = _positions(input_ids, attention_mask, past)
        hidden = self._hidden(input_ids, position_ids, mask, cache)
        kept = hidden[:, -logits_to_keep:] if isinstance(logits_to_keep, int) else hidden
        if isinstance(logits_to_keep, Tensor):
            kept = hidden[:, logits_to_keep]
        logits = kept @ self.lm_head
        loss = None
        if labels is not None:
            flat = logits[:, :-1].float().flatten(0, 1)
            loss = F.cross_entropy(flat, labels[:, 1:].flatten())
        return output(logits, cache if keep else None, loss)

    def new_cache(self) -> Cache:
        """An empty state for every layer."""
        return Cache(layers=[BdhState() for _ in range(self.config.num_hidden_layers)])

    def state_shapes(self) -> list[StateShape]:
        """The state of one sequence: for every layer [heads, N, D]."""
        config = self.config
        shape = (config.num_attention_heads, config.num_neurons, config.hidden_size)
        return [StateShape(shape)] * config.num_hidden_layers

    def advance(self, input_ids: Tensor, positions: Tensor, states: Sequence[Tensor]) -> Tensor:
        """As `RecurrentModel.advance`: logits [n, vocabulary] after the last of the tokens."""
        cache = self.new_cache()
        for layer, state in zip(cache.layers, states, strict=True):
            assert isinstance(layer, BdhState)
            layer.state = state
        hidden = self._hidden(input_ids, positions, None, cache)
        return hidden[:, -1] @ self.lm_head

    def _hidden(self, ids: Tensor, positions: Tensor, mask: Tensor | None, cache: Cache) -> Tensor:
        """The last layer's output [batch, time, D], chunk by chunk so that memory stays bounded."""
        if self.training:
            return self._chunk(ids, positions, mask, None)
        chunks = []
        for start in range(0, ids.shape[1], CHUNK):
            part = slice(start, start + CHUNK)
            masked = None if mask is None else mask[:, part]
            chunks.append(self._chunk(ids[:, part], positions[:, part], masked, cache))
        return torch.cat(chunks, dim=1)

    def _chunk(
        self, ids: Tensor, positions: Tensor, mask: Tensor | None, cache: Cache | None
    ) -> Tensor:
        x = self._norm(self.embed(ids))
        cos, sin = self._rotation(positions, x.dtype)
        for layer in range(self.config.num_hidden_layers):
            own = None if cache is None else cache.layers[layer]
            x = self._layer(x, cos, sin, mask, own)
        return x

    def _layer(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, own: Any) -> Tensor:
        s = F.relu(x.unsqueeze(1) @ self.encoder)  # [batch, heads, time, N]
        if own is not None and own.state is not None and _few(s):
            return self._layer_of_few(x, s, cos, sin, own)
        q = s * cos + _turned(s) * sin
        if mask is not None:
            q = q * mask[:, None, :, None].to(q.dtype)
        attended = attend(q, x, None) if own is None else own.update(q, x)[0]
        y = F.relu(self._norm(attended.to(x.dtype)) @ self.encoder_v)
        z = F.dropout(s * y, self.config.dropout, self.training)
        z = z.transpose(1, 2).flatten(2)  # heads one after another: [batch, time, heads * N]
        return self._norm(x + self._norm(z @ self.decoder))

    def _layer_of_few(
        self, x: Tensor, s: Tensor, cos: Tensor, sin: Tensor, own: BdhState
    ) -> Tensor:
        """One token of one row, of whose neurons few are active: only their weights are read."""
        assert own.state is not None
        heads, neurons = self.config.num_attention_heads, self.config.num_neurons
        flat, state = s.reshape(-1), own.state.view(heads * neurons, -1)
        pairs = flat.view(-1, 2).any(-1).nonzero().squeeze(-1)  # rotation mixes neighbours
        active = (pairs[:, None] * 2 + torch.arange(2, device=pairs.device)).reshape(-1)
        place = active % neurons
        few = flat[active].view(-1, 2)
        turned = torch.stack((-few[:, 1], few[:, 0]), -1).reshape(-1)
        q = few.reshape(-1) * cos[0, 0, 0, place] + turned * sin[0, 0, 0, place]
        rows = state[active]
        attended = x.new_zeros(heads, x.shape[-1], dtype=torch.float32)
        attended.index_add_(0, active // neurons, q.float()[:, None] * rows)
        state.index_add_(0, active, q.float()[:, None] * x[0, 0].float())
        own.length += 1
        y = F.relu(self._norm(attended.to(x.dtype)).unsqueeze(1) @ self.encoder_v).reshape(-1)
        z = flat[active] * y[active]
        out = (z @ self.decoder[active]).view(1, 1, -1)
        return self._norm(x + self._norm(out))

    def _norm(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (x.shape[-1],), eps=self.config.layer_norm_eps)

    def _rotation(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and sine [batch, 1, time, N] of every neuron's angle, computed in float32.

        Neurons 2j and 2j + 1 share a frequency; turns are counted and their whole part dropped.
        """
        phases = positions[:, None, :, None].float() * self._frequencies(positions.device)
        angles = (phases % 1) * (2 * math.pi)
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def _frequencies(self, device: torch.device) -> Tensor:
        count = self.config.num_neurons
        pairs = torch.arange(count, dtype=torch.float32, device=device).div(2).floor() * 2
        return 1 / (self.config.rope_theta ** (pairs / count)) / (2 * math.pi)


def attend(q: Tensor, x: Tensor, state: Tensor | None) -> Tensor:
    """Attention over all earlier tokens: a [batch, heads, time, D].

    Args:
        q: rotated activations [batch, heads, time, N], zero for padding; queries and keys are one.
        x: values [batch, time, D], shared by the heads.
        state: the sum of outer products of all earlier tokens [batch, heads, N, D], to which these
            are added in place; None: there are none, and nothing is kept.
    """
    values = x.unsqueeze(1)
    if q.shape[2] == 1 and state is not None:
        attended = q.float() @ state
        state.add_(q.float().mT * values.float())
        return attended
    direct = (q @ q.mT).tril(diagonal=-1) @ values
    if state is None:
        return direct
    attended = direct.float() + q.float() @ state
    state.add_(q.float().mT @ values.float())
    return attended


def _few(s: Tensor) -> bool:
    """Whether a token's activations [1, heads, 1, N] are so few that picking them pays."""
    if s.device.type != "cpu" or s.shape[0] != 1 or s.shape[2] != 1 or s.shape[-1] % 2:
        return False
    return bool(s.count_nonzero() < SPARSE * s.numel())


def _turned(v: Tensor) -> Tensor:
    """Neighbouring components turned by a quarter: (a, b) becomes (-b, a)."""
    if v.shape[-1] % 2:  # the original's slices fail likewise; an odd neuron count is no model
        raise ValueError(f"a head must have an even number of neurons, got {v.shape[-1]}")
    return torch.stack((-v[..., 1::2], v[..., ::2]), dim=-1).flatten(-2)


def _positions(ids: Tensor, mask: Tensor | None, past: int) -> Tensor:
    if mask is None:
        return torch.arange(past, past + ids.shape[1], device=ids.device).expand(ids.shape)
    return (mask.long().cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]


def _is_ours(cache: Cache) -> bool:
    """Whether a cache is one of ours; `generate` brings an empty one of another kind at first."""
    if cache.layers and all(isinstance(layer, BdhState) for layer in cache.layers):
        return True
    if cache.get_seq_length():
        raise ValueError("BDH keeps a state of its own: pass the cache that it returned")
    return False


AutoConfig.register("bdh", BdhConfig)
AutoModelForCausalLM.register(BdhConfig, BdhForCausalLM)
