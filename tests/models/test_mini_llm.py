"""Mini-LLM checkpoints against the original's equations in float64, and what is refused."""

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaForCausalLM

from components.models.converters.mini_llm import ModelArgs, convert
from components.models.foreign_checkpoints import foreign_kind
from pipeline.spec import SpecError

ARGS = {"dim": 48, "n_layers": 3, "n_heads": 6, "n_kv_heads": 2, "vocab_size": 101}
ARGS |= {"multiple_of": 32, "max_seq_len": 64, "dropout": 0.0}


def weights(seed: int = 0, tied: bool = True) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    args = ModelArgs(**ARGS)
    narrow = args.dim // args.n_heads * args.kv_heads

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape) * 0.3

    state = {"tok_embeddings.emb.weight": draw(args.vocab_size, args.dim)}
    for number in range(args.n_layers):
        layer = f"layers.{number}."
        for name, shape in {
            "attention.wq": (args.dim, args.dim),
            "attention.wk": (narrow, args.dim),
            "attention.wv": (narrow, args.dim),
            "attention.wo": (args.dim, args.dim),
            "feed_forward.w1": (args.hidden, args.dim),
            "feed_forward.w2": (args.dim, args.hidden),
            "feed_forward.w3": (args.hidden, args.dim),
        }.items():
            state[f"{layer}{name}.weight"] = draw(*shape)
        for name in ("attention_norm", "ffn_norm"):
            state[f"{layer}{name}.weight"] = 1 + draw(args.dim)
    state["norm.weight"] = 1 + draw(args.dim)
    table = state["tok_embeddings.emb.weight"]
    state["output.weight"] = table if tied else draw(args.vocab_size, args.dim)
    turns = torch.outer(torch.arange(64.0), 10000.0 ** -(torch.arange(0, 8, 2) / 8))
    state["rope.freqs_cis"] = torch.polar(torch.ones_like(turns), turns)
    return state


def reference(state: dict[str, Tensor], ids: Tensor, dtype: Any) -> Tensor:
    """Logits [time, vocabulary] by the original's equations: pairs of neighbours are turned."""
    args = ModelArgs(**ARGS)
    w = {k: v.to(dtype) for k, v in state.items() if not v.is_complex()}
    size, time = args.dim // args.n_heads, len(ids)

    def norm(v: Tensor, scale: Tensor) -> Tensor:
        return v / torch.sqrt((v * v).mean(-1, keepdim=True) + 1e-6) * scale

    pair = torch.arange(0, size, 2, dtype=dtype)
    angle = torch.arange(time, dtype=dtype)[:, None] * 10000.0 ** (-pair / size)

    def turn(v: Tensor) -> Tensor:  # [heads, time, size]
        even, odd = v[..., ::2], v[..., 1::2]
        turned = (
            even * angle.cos() - odd * angle.sin(),
            even * angle.sin() + odd * angle.cos(),
        )
        return torch.stack(turned, -1).flatten(-2)

    def heads(v: Tensor, count: int) -> Tensor:
        return v.view(time, count, size).transpose(0, 1)

    x = w["tok_embeddings.emb.weight"][ids]
    ahead = torch.ones(time, time).triu(1).bool()
    for number in range(args.n_layers):
        at = f"layers.{number}."
        h = norm(x, w[f"{at}attention_norm.weight"])
        q = turn(heads(h @ w[f"{at}attention.wq.weight"].T, args.n_heads))
        k = turn(heads(h @ w[f"{at}attention.wk.weight"].T, args.kv_heads))
        v = heads(h @ w[f"{at}attention.wv.weight"].T, args.kv_heads)
        k, v = (t.repeat_interleave(args.n_heads // args.kv_heads, 0) for t in (k, v))
        scores = (q @ k.mT / size**0.5).masked_fill(ahead, -torch.inf)
        mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(time, -1)
        x = x + mixed @ w[f"{at}attention.wo.weight"].T
        h = norm(x, w[f"{at}ffn_norm.weight"])
        gate = F.silu(h @ w[f"{at}feed_forward.w1.weight"].T)
        x = (
            x
            + (gate * (h @ w[f"{at}feed_forward.w3.weight"].T)) @ w[f"{at}feed_forward.w2.weight"].T
        )
    return norm(x, w["norm.weight"]) @ w["output.weight"].T


def pickled(folder: Path, state: dict[str, Tensor], as_class: bool, prefix: str = "") -> Path:
    """`ckpt.pt` as the original's training writes it, its dataclass at `model.config`."""
    folder.mkdir(parents=True)
    args: Any = dict(ARGS)
    if as_class:
        module = types.ModuleType("model.config")
        kind = type("ModelArgs", (), {"__module__": "model.config", "__qualname__": "ModelArgs"})
        module.ModelArgs = kind  # type: ignore[attr-defined]
        sys.modules |= {"model": types.ModuleType("model"), "model.config": module}
        args = kind()
        args.__dict__.update(ARGS)
    saved = {"model": {prefix + k: v for k, v in state.items()}, "optimizer": {}, "iter_num": 7}
    torch.save(saved | {"model_args": args, "best_val_loss": torch.tensor(3.2)}, folder / "ckpt.pt")
    for name in ("model.config", "model") if as_class else ():
        del sys.modules[name]
    return folder


def loaded(folder: Path) -> LlamaForCausalLM:
    config, state = convert(folder)
    model = LlamaForCausalLM(config).eval()
    left = model.load_state_dict(state, strict=False)
    assert not left.unexpected_keys and set(left.missing_keys) <= {"lm_head.weight"}
    model.tie_weights()
    return model


IDS = torch.tensor([1, 17, 99, 3, 42, 8, 8, 56, 100, 0, 23])


@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_those_of_the_originals_equations_in_float64(tmp_path: Path, tied: bool) -> None:
    state = weights(tied=tied)
    model = loaded(pickled(tmp_path / "m", state, as_class=True))
    assert model.config.tie_word_embeddings is tied
    exact = reference(state, IDS, torch.float64)
    own = (reference(state, IDS, torch.float32).double() - exact).abs().max()
    with torch.inference_mode():
        found = model(IDS[None]).logits[0]
    assert (found.double() - exact).abs().max() <= 10 * own


def test_cached_and_uncached_logits_agree(tmp_path: Path) -> None:
    model = loaded(pickled(tmp_path / "m", weights(), as_class=False))
    whole = model.generate(IDS[None], max_new_tokens=20, do_sample=False, eos_token_id=-1)
    again = model.generate(
        IDS[None], max_new_tokens=20, do_sample=False, use_cache=False, eos_token_id=-1
    )
    assert whole.tolist() == again.tolist()


@pytest.mark.parametrize("prefix", ["", "_orig_mod."])
@pytest.mark.parametrize("as_class", [True, False])
def test_pickles_are_read_safely_whatever_names_their_sizes(
    tmp_path: Path, prefix: str, as_class: bool
) -> None:
    folder = pickled(tmp_path / "m", weights(), as_class, prefix)
    assert foreign_kind(folder) == "mini_llm"
    assert loaded(folder).config.num_key_value_heads == 2


def test_the_safetensors_export_gives_the_same_model(tmp_path: Path) -> None:
    state = {k: v.clone() for k, v in weights().items() if not v.is_complex()}
    (tmp_path / "e").mkdir()
    save_file(state, tmp_path / "e" / "model.safetensors")
    config = {"model_type": "mini-llm", "architectures": ["MiniLLM"], **ARGS}
    (tmp_path / "e" / "config.json").write_text(json.dumps(config))
    pickle = loaded(pickled(tmp_path / "p", weights(), as_class=False))
    with torch.inference_mode():
        assert torch.equal(loaded(tmp_path / "e")(IDS[None]).logits, pickle(IDS[None]).logits)


class Hostile:
    def __reduce__(self) -> Any:
        return (exec, ("raise AssertionError('this was run')",))


def test_a_pickle_that_wants_code_to_run_is_refused_without_running_it(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    torch.save({"model": Hostile(), "model_args": {}}, tmp_path / "m" / "ckpt.pt")
    with pytest.raises(SpecError, match=r"ckpt\.pt must hold tensors and plain values only"):
        convert(tmp_path / "m")


def test_a_torn_or_incomplete_checkpoint_is_refused_by_name(tmp_path: Path) -> None:
    state = weights()
    del state["layers.1.attention.wk.weight"]
    with pytest.raises(SpecError, match=r"missing: layers\.1\.attention\.wk\.weight"):
        convert(pickled(tmp_path / "m", state, as_class=False))
    file = tmp_path / "m" / "ckpt.pt"
    file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(SpecError, match="may be torn"):
        convert(tmp_path / "m")
