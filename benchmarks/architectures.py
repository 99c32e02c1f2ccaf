"""What the cache of each architecture of ours is worth, and what BDH's tokens cost where.

    python benchmarks/architectures.py [--device cuda] [--new 256]

Three tables. Tokens per second of `generate`, greedy, one row, with the model's cache and reading
everything again at each token. The strategies of routing memory: decoding, reading a prompt of
1,024 tokens, and what the routers keep of a row. BDH's milliseconds per token after prompts of 100
and 4,000 tokens. The models are bdh_tiny and mini_llm_tiny of examples/models, and a random
memory adapter of a 4-layer backbone (8 chapters of 64 tokens, 2 read, routed by token).
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from components.models.architectures.bdh import BdhForCausalLM
from components.models.architectures.memory_transformer import MemoryTransformerForCausalLM
from components.models.architectures.outputs import CACHE, cache_of
from components.models.converters import bdh, mini_llm
from components.models.memory.config import MemoryTransformerConfig
from components.models.memory.settings import STRATEGIES

MODELS = Path(__file__).resolve().parent.parent / "examples" / "models"
PROMPT = 64


def tiny_bdh() -> PreTrainedModel:
    """examples/models/bdh_tiny."""
    config, state = bdh.convert(MODELS / "bdh_tiny")
    model = BdhForCausalLM(config)
    model.load_state_dict({name: tensor.float() for name, tensor in state.items()})
    return model


def tiny_mini_llm() -> PreTrainedModel:
    """examples/models/mini_llm_tiny."""
    config, state = mini_llm.convert(MODELS / "mini_llm_tiny")
    model = LlamaForCausalLM(config)
    model.load_state_dict({k: v.float() for k, v in state.items()}, strict=False)
    model.tie_weights()
    return model


def random_memory(strategy: str = "token") -> PreTrainedModel:
    """A memory adapter of a random backbone."""
    backbone = LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
    )
    memory = {
        "num_memory_tokens": 512,
        "use_chapters": True,
        "num_chapters": 8,
        "top_k_chapters": 2,
        "routing_strategy_inference": strategy,
    }
    values = backbone.to_diff_dict() | {"model_type": "llama"}
    return MemoryTransformerForCausalLM(MemoryTransformerConfig(values, memory))


KINDS: dict[str, Callable[[], PreTrainedModel]] = {
    "bdh_tiny": tiny_bdh,
    "mini_llm_tiny": tiny_mini_llm,
    "memory adapter": random_memory,
}


def rate(model: Any, new: int, use_cache: bool) -> float:
    """Tokens per second of one greedy row."""
    torch.manual_seed(0)
    ids = torch.randint(3, model.config.vocab_size, (1, PROMPT), device=model.device)
    given = {"do_sample": False, "pad_token_id": 0, "use_cache": use_cache}
    model.generate(ids, max_new_tokens=4, min_new_tokens=4, **given)
    start = time.perf_counter()
    model.generate(ids, max_new_tokens=new, min_new_tokens=new, **given)
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    return new / (time.perf_counter() - start)


def milliseconds_at(model: Any, position: int, tokens: int = 60) -> float:
    """Median milliseconds of a decoded token after a prompt of `position` tokens."""
    ids = torch.randint(0, 256, (1, position), device=model.device)
    times = []
    with torch.inference_mode():
        result = model(ids, use_cache=True, logits_to_keep=1)
        for _ in range(tokens):
            token = result.logits[:, -1:].argmax(-1)
            if model.device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            result = model(token, use_cache=True, **{CACHE: cache_of(result)})
            if model.device.type == "cuda":
                torch.cuda.synchronize()
            times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def prefill_milliseconds(model: Any, tokens: int = 1024) -> float:
    """Median milliseconds of reading a prompt."""
    ids = torch.randint(3, model.config.vocab_size, (1, tokens), device=model.device)
    times = []
    with torch.inference_mode():
        for _ in range(5):
            start = time.perf_counter()
            model(ids, use_cache=True, logits_to_keep=1)
            if model.device.type == "cuda":
                torch.cuda.synchronize()
            times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def window_bytes(model: Any) -> int:
    """What the routers keep of one row, in bytes, all memory layers together."""
    settings = model.settings
    if settings.routing_strategy_inference not in ("rolling", "hybrid"):
        return 0
    width = settings.hidden_size * torch.finfo(model.dtype).bits // 8 + 1  # a state, and its mask
    return len(settings.layers) * settings.routing_window_size * width


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="The caches of our architectures.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--new", type=int, default=256, help="tokens to generate")
    given = parser.parse_args()
    cuda = given.device.startswith("cuda")
    name = torch.cuda.get_device_name() if cuda else f"CPU, {torch.get_num_threads()} threads"
    print(f"{name}, float32, prompt of {PROMPT} tokens, {given.new} new ones\n")
    print(f"{'model':16} {'cached tok/s':>14} {'uncached tok/s':>14} {'times':>7}")
    for kind, make in KINDS.items():
        model = make().eval().to(given.device)
        cached, uncached = (rate(model, given.new, flag) for flag in (True, False))
        print(f"{kind:16} {cached:14.1f} {uncached:14.1f} {cached / uncached:7.1f}")
    head = ("memory routed by", "cached tok/s", "prefill 1,024 ms", "kept, bytes")
    print("\n{:16} {:>14} {:>17} {:>12}".format(*head))
    for strategy in STRATEGIES:
        model = random_memory(strategy).eval().to(given.device)
        numbers = (rate(model, given.new, True), prefill_milliseconds(model), window_bytes(model))
        print("{:16} {:14.1f} {:17.1f} {:12,}".format(strategy, *numbers))
    model = tiny_bdh().eval().to(given.device)
    print(f"\n{'bdh_tiny, position':20} {'ms per token':>12}")
    for position in (100, 4000):
        print(f"{position:20} {milliseconds_at(model, position):12.2f}")


if __name__ == "__main__":
    main()
