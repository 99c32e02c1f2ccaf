"""Mini-LLM checkpoints as Transformers' Llama, which computes the same.

The original turns neighbouring components of a head (2j, 2j + 1); Llama turns component j with
component j + half. Reordering the rows of the query and key weights makes them equal.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from components.models.converters.state_dicts import (
    demand,
    read_pickle,
    read_safetensors,
    unwrapped,
)
from components.models.hashes import tokenizer_folder
from components.models.weight_files import read_json
from pipeline.spec import SpecError

PICKLED = "ckpt.pt"
_THETA = 10000.0
_EPS = 1e-6


@dataclass
class ModelArgs:
    """The sizes that a checkpoint tells; the class that its pickle names is read as this one."""

    dim: int = 384
    n_layers: int = 16
    n_heads: int = 6
    n_kv_heads: int | None = 6
    vocab_size: int = 32000
    multiple_of: int = 32
    max_seq_len: int = 2048
    dropout: float = 0.0
    device: str | None = None

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.n_kv_heads or self.n_heads

    @property
    def hidden(self) -> int:
        """Width of the feed-forward layer: four times `dim`, rounded up."""
        return -(-4 * self.dim // self.multiple_of) * self.multiple_of


def convert(folder: Path) -> tuple[LlamaConfig, dict[str, Tensor]]:
    """The Llama config and weights that compute what the checkpoint does.

    Raises:
        SpecError: the checkpoint is torn, or lacks weights that its sizes ask for.
    """
    args, state, path = _read(folder)
    state = {name: tensor for name, tensor in state.items() if name != "rope.freqs_cis"}
    tied = _is_tied(state)
    demand(state, _shapes(args), path)
    config = LlamaConfig(
        vocab_size=args.vocab_size,
        hidden_size=args.dim,
        intermediate_size=args.hidden,
        num_hidden_layers=args.n_layers,
        num_attention_heads=args.n_heads,
        num_key_value_heads=args.kv_heads,
        max_position_embeddings=args.max_seq_len,
        rms_norm_eps=_EPS,
        rope_parameters={"rope_type": "default", "rope_theta": _THETA},
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=2,
        dtype=str(state["norm.weight"].dtype).removeprefix("torch."),
        architectures=["LlamaForCausalLM"],
    )
    return config, dict(_renamed(state, args, tied))


def tokenizer(folder: Path) -> PreTrainedTokenizerBase | None:
    """The tokenizer of its JSON file as it is; the class that its config names adds a blank.

    None where the folder has no such file.
    """
    own = tokenizer_folder(folder)
    if own is None:
        return None
    file = own / "tokenizer.json"
    if not file.is_file():
        raise SpecError(f"{own} must hold tokenizer.json, whose ids the model was trained on")
    return PreTrainedTokenizerFast(
        tokenizer_file=str(file),
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


def _read(folder: Path) -> tuple[ModelArgs, dict[str, Tensor], Path]:
    path = folder / "model.safetensors"
    if path.is_file():
        return _args(_config(folder), path), unwrapped(read_safetensors(path), path), path
    path = folder / PICKLED
    saved = read_pickle(path, [(ModelArgs, "model.config.ModelArgs")])
    if not isinstance(saved, Mapping) or "model" not in saved or "model_args" not in saved:
        raise SpecError(f"{path} must hold `model` and `model_args`, as Mini-LLM's training saves")
    return _args(saved["model_args"], path), unwrapped(saved["model"], path), path


def _args(given: Any, path: Path) -> ModelArgs:
    values = asdict(given) if isinstance(given, ModelArgs) else given
    if not isinstance(values, Mapping):
        raise SpecError(f"{path} must tell the model's sizes as a mapping, got {type(given)}")
    known = {field.name for field in fields(ModelArgs)}
    args = ModelArgs(**{name: value for name, value in values.items() if name in known})
    if args.dim % args.n_heads or args.n_heads % args.kv_heads:
        raise SpecError(f"{path} must have heads that divide dim={args.dim}, got {args}")
    return args


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    return read_json(path) if path.is_file() else {}


def _is_tied(state: dict[str, Tensor]) -> bool:
    """Whether the output weights are the embedding's; where the file leaves them out, they are."""
    table = state.get("tok_embeddings.emb.weight")
    head = state.setdefault("output.weight", table) if table is not None else None
    return table is not None and head is not None and torch.equal(table, head)


def _shapes(args: ModelArgs) -> dict[str, list[int]]:
    wide, narrow = args.dim, args.kv_heads * args.dim // args.n_heads
    shapes = {"tok_embeddings.emb.weight": [args.vocab_size, wide], "norm.weight": [wide]}
    shapes["output.weight"] = [args.vocab_size, wide]
    for number in range(args.n_layers):
        layer = f"layers.{number}."
        shapes |= {
            f"{layer}attention.wq.weight": [wide, wide],
            f"{layer}attention.wk.weight": [narrow, wide],
            f"{layer}attention.wv.weight": [narrow, wide],
            f"{layer}attention.wo.weight": [wide, wide],
            f"{layer}attention_norm.weight": [wide],
            f"{layer}feed_forward.w1.weight": [args.hidden, wide],
            f"{layer}feed_forward.w2.weight": [wide, args.hidden],
            f"{layer}feed_forward.w3.weight": [args.hidden, wide],
            f"{layer}ffn_norm.weight": [wide],
        }
    return shapes


def _renamed(state: Mapping[str, Tensor], args: ModelArgs, tied: bool) -> Any:
    yield "model.embed_tokens.weight", state["tok_embeddings.emb.weight"]
    yield "model.norm.weight", state["norm.weight"]
    if not tied:
        yield "lm_head.weight", state["output.weight"]
    for number in range(args.n_layers):
        theirs, ours = f"layers.{number}.", f"model.layers.{number}."
        query = state[f"{theirs}attention.wq.weight"]
        key = state[f"{theirs}attention.wk.weight"]
        yield f"{ours}self_attn.q_proj.weight", halves(query, args.n_heads)
        yield f"{ours}self_attn.k_proj.weight", halves(key, args.kv_heads)
        for old, new in _NAMES.items():
            yield f"{ours}{new}.weight", state[f"{theirs}{old}.weight"]


_NAMES = {
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "attention_norm": "input_layernorm",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
    "ffn_norm": "post_attention_layernorm",
}


def halves(weight: Tensor, heads: int) -> Tensor:
    """Rows of every head with the even ones before the odd ones; [heads * size, inputs]."""
    rows, inputs = weight.shape
    pairs = weight.view(heads, rows // heads // 2, 2, inputs)
    return pairs.transpose(1, 2).reshape(rows, inputs).contiguous()


def neighbours(state: Mapping[str, Tensor], args: ModelArgs) -> dict[str, Tensor]:
    """A Llama's weights under Mini-LLM's names and in its order: what `convert` undoes."""
    named = {
        f"model.layers.{n}.{new}": (n, old)
        for n in range(args.n_layers)
        for old, new in _NAMES.items()
    }
    theirs = {
        "tok_embeddings.emb.weight": state["model.embed_tokens.weight"],
        "norm.weight": state["model.norm.weight"],
    }
    for ours, (number, old) in named.items():
        theirs[f"layers.{number}.{old}.weight"] = state[f"{ours}.weight"]
    for number in range(args.n_layers):
        for old, new, heads in (("wq", "q_proj", args.n_heads), ("wk", "k_proj", args.kv_heads)):
            weight = state[f"model.layers.{number}.self_attn.{new}.weight"]
            rows, inputs = weight.shape
            pairs = weight.view(heads, 2, rows // heads // 2, inputs).transpose(1, 2)
            theirs[f"layers.{number}.attention.{old}.weight"] = pairs.reshape(rows, inputs)
    return theirs
