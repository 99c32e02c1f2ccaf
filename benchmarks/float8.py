"""What 8 bits cost: next-token distributions of a model in 8 bits beside its own, on plain text.

    python benchmarks/float8.py --model /a/folder

Prints, for products and for cached keys and values in 8-bit floating point, the KL divergence from
the bfloat16 model's distributions in nats, how often the likeliest token is the same, and the mean
shift of the entropy. Needs a GPU. The text is Python's own help on its language.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
import yaml
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from components.backends.hf.slots.attention import NAME, ProbeFrame, using_frame
from components.backends.hf.slots.kv_cache import FP8, as_cached
from launch.config.compose import build
from launch.config.words import CONF

TEXTS, LENGTH = 16, 1024


class Float8Frame(ProbeFrame):
    """Attention to keys and values that were cached in 8 bits."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """As `ProbeFrame.attend`."""
        key, value = (as_cached(part, FP8).to(query.dtype) for part in (key, value))
        return super().attend(layer, query, key, value, scale)


def main() -> None:
    """Print a line per combination."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="a folder that Transformers reads")
    folder = Path(parser.parse_args().model)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chosen = sorted(topics.values(), key=len)[-TEXTS:]
    texts = [tokenizer(text)["input_ids"][:LENGTH] for text in chosen]
    node = yaml.safe_load((CONF / "quantization" / "torchao_fp8dyn.yaml").read_text())
    float8 = build("quantization", node).load_kwargs()["quantization_config"]
    models = {"bfloat16": None, "float8": float8}
    exact: list[Tensor] = []
    print(f"{'products':>10}{'cache':>10}{'KL':>10}{'top-1':>9}{'entropy':>10}")
    for name, config in models.items():
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.bfloat16, quantization_config=config, device_map="cuda"
        )
        model.set_attn_implementation(NAME)
        for cache, frame in {"bfloat16": ProbeFrame, "float8": Float8Frame}.items():
            found = [logits(model, ids, frame()) for ids in texts]
            exact = exact or found
            print(f"{name:>10}{cache:>10}" + report(found, exact), flush=True)


@torch.inference_mode()
def logits(model: Any, ids: Sequence[int], frame: ProbeFrame) -> Tensor:
    """Logits of every position, on the host."""
    tokens = torch.tensor([ids], device="cuda")
    places = torch.arange(len(ids), device="cuda")[None]
    with using_frame(frame):
        found: Tensor = model(input_ids=tokens, position_ids=places, use_cache=False).logits[0]
    return found.cpu()


def report(found: Sequence[Tensor], exact: Sequence[Tensor]) -> str:
    """Mean KL, agreement and entropy's shift over all positions."""
    sums, count = torch.zeros(3, dtype=torch.float64), 0
    for ours, theirs in zip(found, exact, strict=True):
        left, right = (part.cuda().double().log_softmax(-1) for part in (ours, theirs))
        divergence = (right.exp() * (right - left)).sum()
        same = (left.argmax(-1) == right.argmax(-1)).sum()
        entropy = [-(logs.exp() * logs).sum() for logs in (left, right)]
        sums += torch.stack([divergence, same, entropy[0] - entropy[1]]).cpu()
        count += len(ours)
    divergence, same, shift = (sums / count).tolist()
    return f"{divergence:>10.5f}{same:>9.1%}{shift:>+10.4f}"


if __name__ == "__main__":
    main()
