"""Trains the tiny models of examples/models on Python's own help texts: minutes on one GPU.

    python examples/train_tiny.py bdh examples/models/bdh_tiny
    python examples/train_tiny.py mini_llm examples/models/mini_llm_tiny

The text is `pydoc_data.topics`, which ships with Python, and the docstrings of its standard
library. What is saved has the layout of the originals' own training, so that loading such a folder
is tried whenever a tiny model is used.
"""

import argparse
import ast
import json
import math
import sysconfig
import time
from pathlib import Path
from pydoc_data import topics

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from components.models.architectures.bdh import BdhConfig, BdhForCausalLM
from components.models.converters.mini_llm import ModelArgs, neighbours

SPECIAL = ("<unk>", "<s>", "</s>", "<pad>", "<user>", "<assistant>", "<system>")


def corpus() -> str:
    """Python's help topics, then the docstrings of its standard library, sorted by file."""
    texts = [text for _, text in sorted(topics.topics.items())]
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
            if isinstance(node, kinds) and (text := ast.get_docstring(node)):
                texts.append(text)
    return "\n\n".join(texts)


def train(
    model: PreTrainedModel, ids: Tensor, steps: int, batch: int, window: int, rate: float
) -> float:
    """AdamW with warm-up and a cosine, leaving the weights that did best on the last tenth.

    Returns their loss there, in nats an id.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    split = len(ids) * 9 // 10
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.1, betas=(0.9, 0.95))
    start, best, kept = time.monotonic(), math.inf, model.state_dict()
    for step in range(steps):
        warm = min(1.0, (step + 1) / 100)
        turn = 0.55 + 0.45 * math.cos(math.pi * step / steps)
        for group in optimizer.param_groups:
            group["lr"] = rate * warm * turn
        loss = loss_of(model, batch_of(ids[:split], batch, window).to(device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if (step + 1) % 50 == 0 or step + 1 == steps:
            held_out = held_out_loss(model, ids[split:], window)
            if held_out < best:
                best, kept = held_out, {k: v.clone() for k, v in model.state_dict().items()}
            seconds = time.monotonic() - start
            print(f"step {step + 1}: {loss.item():.3f}, held out {held_out:.3f}, {seconds:.0f} s")
    model.load_state_dict(kept)
    model.cpu().eval()
    return best


def held_out_loss(model: PreTrainedModel, ids: Tensor, window: int) -> float:
    """The loss on windows that follow each other, in nats an id."""
    count = min(64, (len(ids) - 1) // window)
    windows = torch.stack([ids[n * window : (n + 1) * window + 1] for n in range(count)])
    model.eval()
    with torch.no_grad():
        loss = loss_of(model, windows.to(model.device))
    model.train()
    return loss.item()


def loss_of(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Mean cross entropy of the next id, in nats."""
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits.float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def batch_of(ids: Tensor, batch: int, window: int) -> Tensor:
    """Random windows [batch, window + 1]."""
    starts = torch.randint(0, len(ids) - window - 1, (batch,))
    return torch.stack([ids[start : start + window + 1] for start in starts])


def bdh(folder: Path, steps: int) -> None:
    """A byte-level BDH of 1.6 million parameters, saved as the original saves one."""
    config = BdhConfig(
        num_hidden_layers=4,
        hidden_size=96,
        num_attention_heads=4,
        mlp_internal_dim_multiplier=56,
        dropout=0.05,
    )
    model = BdhForCausalLM(config)
    ids = torch.tensor(list(corpus().encode()))
    loss = train(model, ids, steps, batch=32, window=384, rate=2e-3)
    names = ("n_layer", "n_embd", "n_head", "mlp_internal_dim_multiplier", "vocab_size", "dropout")
    sizes = {name: getattr(config, name) for name in names}
    save(folder, sizes, dict(model.state_dict()), loss, steps)


def mini_llm(folder: Path, steps: int) -> None:
    """A Mini-LLM of 2 million parameters with a BPE of 2,048 entries, as its export saves one."""
    text = corpus()
    tokenizer = bpe(text)
    args = ModelArgs(dim=160, n_layers=5, n_heads=5, n_kv_heads=5, vocab_size=2048, max_seq_len=512)
    config = LlamaConfig(
        vocab_size=args.vocab_size,
        hidden_size=args.dim,
        intermediate_size=args.hidden,
        num_hidden_layers=args.n_layers,
        num_attention_heads=args.n_heads,
        num_key_value_heads=args.kv_heads,
        max_position_embeddings=args.max_seq_len,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        attention_dropout=0.1,
    )
    model = LlamaForCausalLM(config)
    ids = torch.tensor([1, *tokenizer.encode(text, add_special_tokens=False).ids])
    loss = train(model, ids, steps, batch=64, window=256, rate=2e-3)
    sizes = {"model_type": "mini-llm", "architectures": ["MiniLLM"]} | vars(args)
    save(folder, sizes, neighbours(model.state_dict(), args), loss, steps)
    tokenizer.save(str(folder / "tokenizer.json"))


def bpe(text: str) -> Tokenizer:
    """Byte-fallback BPE with Mini-LLM's special tokens at its ids, BOS in front."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=2048, special_tokens=[*SPECIAL, *bytes_])
    tokenizer.train_from_iterator(text.split("\n\n"), trainer)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def save(
    folder: Path, sizes: dict[str, object], state: dict[str, Tensor], loss: float, steps: int
) -> None:
    """Write weights, sizes and how they were made."""
    folder.mkdir(parents=True, exist_ok=True)
    half = {name: tensor.detach().half().contiguous() for name, tensor in state.items()}
    save_file(half, folder / "model.safetensors")
    (folder / "model.safetensors").chmod(0o644)
    (folder / "config.json").write_text(json.dumps(sizes, sort_keys=True, indent=1) + "\n")
    count = sum(tensor.numel() for tensor in state.values())
    made = {"parameters": count, "steps": steps, "held_out_loss_nats": round(loss, 4)}
    (folder / "training_args.json").write_text(json.dumps(made, indent=1) + "\n")


def main() -> None:
    """Train one of the models."""
    parser = argparse.ArgumentParser(description="Train a tiny model on Python's help texts.")
    parser.add_argument("kind", choices=("bdh", "mini_llm"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=500)
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    {"bdh": bdh, "mini_llm": mini_llm}[given.kind](given.folder, given.steps)


if __name__ == "__main__":
    main()
