"""What a machine can do, what a step must move, and where the rest of a step goes."""

import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from components.backends.hf.backend import HfBackend


def card(backend: HfBackend) -> dict[str, Any]:
    """The card or the processor, and versions."""
    about = backend.describe()
    name = about["device"] if about["device"] != "cpu" else _processor()
    return {
        "device": name,
        "dtype": about["dtype"],
        "threads": about["threads"],
        **about["versions"],
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    found = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{found[0] if found else platform.processor()}, {len(found)} cores"


def copy_speed(backend: HfBackend) -> float:
    """Bytes a second of a large copy within the device's memory, read and written ones counted."""
    device = torch.device("cpu" if backend.describe()["device"] == "cpu" else "cuda")
    size = 1 << (28 if device.type == "cpu" else 31)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = []
    for _ in range(8):
        _wait(device)
        started = time.perf_counter()
        target.copy_(source)
        _wait(device)
        times.append(time.perf_counter() - started)
    return 2 * size / statistics.median(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def floor(backend: HfBackend, rows: int, line: dict[str, Any], speed: float) -> dict[str, Any]:
    """Milliseconds in which a step's weights, cache and logits (written, read) can be moved."""
    model = backend.model
    weights = sum(p.nbytes for p in {id(p): p for p in model.parameters()}.values())
    config = model.config.get_text_config()
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    token = 2 * config.num_hidden_layers * config.num_key_value_heads * size * model.dtype.itemsize
    running = min(rows, line["tokens"] / line["steps"])
    context = line["prefilled_tokens"] + line["reused_tokens"] + line["tokens"] / 2
    cache = running * context / rows * token
    logits = 2 * running * config.vocab_size * model.dtype.itemsize
    least = 1e3 * (weights + cache + logits) / speed
    return {
        "rows_per_step": round(running, 1),
        "floor_ms": round(least, 2),
        "of_floor": round(least / line["ms_per_step"], 2),
    }


def step_times(backend: HfBackend, context: int = 400) -> dict[int, dict[str, float]]:
    """Of every captured step, by rows: milliseconds at one context length, and kernels' shares."""
    steps = backend.steps
    if not hasattr(steps, "graphs"):
        return {}
    chosen = [rows for rows in sorted(steps.graphs) if rows in (1, 16, 64, 128, 256, 512, 1024)]
    return {rows: _step_time(steps, rows, context) for rows in chosen}


def _step_time(steps: Any, rows: int, context: int) -> dict[str, float]:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(12):
        steps.place(rows, context)
        start.record()
        steps.graphs[rows].replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    steps.place(rows, context)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        steps.graphs[rows].replay()
        torch.cuda.synchronize()
    shares = dict.fromkeys((*_KINDS, "the rest"), 0.0)
    for event in seen.key_averages():
        kind = next((k for k, names in _KINDS.items() if event.key.startswith(names)), None)
        kind = kind or (
            "matrix products" if "gemm" in event.key or "cutlass" in event.key else None
        )
        shares[kind or "the rest"] += event.device_time_total / 1e3
    found = {"ms": statistics.median(times), **shares}
    return {name: round(value, 3) for name, value in found.items()}


_KINDS = {
    "attention": ("attend", "merge"),
    "sampling and entropy": ("scan", "settle", "weigh", "conclude"),
    "matrix products": ("nvjet", "void cublasLt", "sm90", "sm80"),
}
