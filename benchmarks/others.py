"""What could decode the same rows with the same model: Transformers' own ways.

`generate` takes static batches, each as long as its longest row. `generate-static` gives it a cache
of fixed size and a compiled forward, its fastest way. `generate_batch` is the manager of continuous
batching that stands behind `model.generate_batch`, asked row by row, so that rows get lengths of
their own.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from shapes import Workload
from transformers import GenerationConfig

SAMPLING = {"do_sample": True, "temperature": 0.7, "top_p": 0.95, "top_k": 0, "pad_token_id": 0}


class Done(NamedTuple):
    """Tokens that were asked for, steps of the model (0: unknown), when the first row was over."""

    tokens: int
    steps: int
    first: float


Engine = Callable[[Any, Sequence[list[int]], Sequence[int], int], Done]


def run(
    engine: str, model: Any, ids: Sequence[list[int]], load: Workload, most: int
) -> dict[str, Any]:
    """One run after a short one. With `most`, rows stop after so many tokens: the line says so."""
    caps = [min(cap, most) for cap in load.caps] if most else load.caps
    decode = ENGINES[engine]
    model.set_attn_implementation("sdpa")
    count = min(len(ids), load.batch)
    warm = [most or max(caps)] if engine == "generate-static" else [4]
    decode(model, ids[:count], warm * count, load.batch)
    if model.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    started, spent = time.perf_counter(), time.process_time()
    done = decode(model, ids, caps, load.batch)
    seconds, spent = time.perf_counter() - started, time.process_time() - spent
    peak = torch.cuda.max_memory_allocated() if model.device.type == "cuda" else None
    return {
        "tokens_per_s": round(done.tokens / seconds, 1),
        "first_row_s": round(done.first - started, 2),
        "ms_per_step": round(1e3 * seconds / done.steps, 2) if done.steps else None,
        "peak_gb": round(peak / 1e9, 1) if peak else None,
        "seconds": round(seconds, 2),
        "processor_s": round(spent, 1),
        "tokens": done.tokens,
        **({"note": f"first {most} tokens of every row"} if most else {}),
    }


def static(
    model: Any, ids: Sequence[list[int]], caps: Sequence[int], batch: int, **fields: Any
) -> Done:
    """`generate` batch by batch; no token behind a row's cap counts."""
    steps, first = 0, 0.0
    for start in range(0, len(ids), batch):
        some, cap = ids[start : start + batch], max(caps[start : start + batch])
        longest = max(map(len, some))
        padded = torch.tensor([[0] * (longest - len(row)) + row for row in some])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in some])
        with torch.inference_mode():
            model.generate(
                padded.to(model.device),
                attention_mask=mask.to(model.device),
                max_new_tokens=cap,
                min_new_tokens=cap,
                **SAMPLING,
                **fields,
            )
        steps += cap
        first = first or time.perf_counter()
    return Done(sum(caps), steps, first)


def compiled(model: Any, ids: Sequence[list[int]], caps: Sequence[int], batch: int) -> Done:
    """As `static`, with a cache of fixed size, for which Transformers compiles the forward."""
    return static(model, ids, caps, batch, cache_implementation="static")


def continuous(model: Any, ids: Sequence[list[int]], caps: Sequence[int], batch: int) -> Done:
    """Transformers' continuous batching; it samples without entropy and without seeds of rows."""
    config = GenerationConfig(max_new_tokens=max(caps), eos_token_id=-1, **SAMPLING)
    over, first, tokens = 0, 0.0, 0
    with model.continuous_batching_context_manager(generation_config=config, block=True) as manager:
        for row, cap in zip(ids, caps, strict=True):
            manager.add_request(list(row), max_new_tokens=cap)
        while over < len(ids):
            result = manager.get_result(timeout=1)
            if result is None:
                if not manager.is_running():
                    raise RuntimeError(f"generate_batch stopped after {over} of {len(ids)} rows")
                continue
            if result.is_finished():
                first = first or time.perf_counter()
                tokens += len(result.generated_tokens)
                over += 1
    return Done(tokens, 0, first)


ENGINES: dict[str, Engine] = {
    "generate": static,
    "generate-static": compiled,
    "generate_batch": continuous,
}
