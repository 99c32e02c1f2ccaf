"""What the kernels of 8-bit decode steps take, beside what they take the place of.

On a CUDA device with 8-bit products, from the repository's root:

    PYTHONPATH=. python benchmarks/float8_kernels.py

Microseconds of one layer of the 8B shape (32 query heads, 8 of keys and values, 128 channels; 4,096
wide, 14,336 within), medians of CUDA graph replays:

attention: to keys and values in 16 and in 8 bits; rows of 400 tokens each, and rows of 230 to 700
tokens of which eight share the first 192. products: by one kernel with scales, and without them and
scaled after; `chosen` is what the decoder does. gated: between the products of a feed-forward
layer, compiled plain operations and the kernel.
"""

from collections.abc import Callable

import torch
import triton
from torch import Tensor
from torch.nn.functional import silu

from components.backends.hf.slots import float8_linear
from components.backends.hf.slots.cuda_attention import PagedDecode
from components.backends.hf.slots.float8_linear import quantize_gated, quantize_rows
from components.backends.hf.slots.kv_cache import FP8, KVCache, LayerShape

DEVICE = torch.device("cuda")
HEADS, SHARED, SIZE, PAGE = 32, 8, 128, 64
WIDTH, INNER = 4096, 14_336
PRODUCTS = ((6144, WIDTH), (WIDTH, WIDTH), (2 * INNER, WIDTH), (WIDTH, INNER))  # outputs, inputs


def main() -> None:
    """Print a line per size."""
    print(torch.cuda.get_device_name())
    for rows in (16, 128, 512, 1024):
        alike = torch.full((rows,), 400, device=DEVICE)
        apart = torch.randint(230, 700, (rows,), device=DEVICE)
        for name, lengths, share in (("400 each", alike, False), ("eight share 192", apart, True)):
            types = {"16 bits": torch.bfloat16, "8 bits": FP8}
            show(f"attention, {rows} rows, {name}", {
                kind: attention(lengths, share, dtype) for kind, dtype in types.items()
            })  # fmt: skip
    for rows in (16, 128, 512):
        for outputs, inputs in PRODUCTS:
            show(f"product, {rows} rows, {inputs} to {outputs}", products(rows, outputs, inputs))
        show(f"gated, {rows} rows", gated(rows))


def show(name: str, times: dict[str, float]) -> None:
    """Print one line of microseconds."""
    print(f"{name:45}", *(f"{kind} {1e3 * each:.1f}" for kind, each in times.items()), flush=True)


def milliseconds(work: Callable[[], object]) -> float:
    """The median of graph replays."""
    work()  # compiles
    return float(triton.testing.do_bench_cudagraph(work, rep=15, return_mode="median"))


def normal(*shape: int) -> Tensor:
    """Random numbers."""
    return torch.randn(*shape, dtype=torch.bfloat16, device=DEVICE)


def attention(lengths: Tensor, share: bool, cached: torch.dtype) -> float:
    """Of one token a row to `lengths` tokens; with `share`, eight rows share their first pages."""
    rows, width = len(lengths), -(-(int(lengths.max()) + 1) // PAGE)
    shape = LayerShape(SHARED, SIZE, SIZE, cached)
    cache = KVCache([shape], rows * width + 1, PAGE, DEVICE)
    for part in (cache.keys[0], cache.values[0]):
        part.copy_(torch.randn(part.shape, device=DEVICE))
    table = torch.randperm(rows * width, device=DEVICE).view(rows, width).to(torch.int32)
    longest = lengths
    if share:
        table[:, :3] = table[::8, :3].repeat_interleave(8, 0)
        longest = lengths.view(-1, 8).max(1).values.repeat_interleave(8)
    order = torch.argsort(longest, descending=True, stable=True).to(torch.int32)
    frame = PagedDecode(cache, table, lengths, order)
    query = normal(1, HEADS, rows, SIZE)
    key, value = normal(1, SHARED, rows, SIZE), normal(1, SHARED, rows, SIZE)
    return milliseconds(lambda: frame.attend(0, query, key, value, SIZE**-0.5))


def products(rows: int, outputs: int, inputs: int) -> dict[str, float]:
    """Of `rows` rows, in each way."""
    given, weight = quantize_rows(normal(rows, inputs)), quantize_rows(normal(outputs, inputs))
    usual, times = float8_linear._FULL, {}
    for way, full in (("with scales", 0.0), ("scaled after", 1e9), ("chosen", usual)):
        float8_linear._FULL = full
        times[way] = milliseconds(
            lambda: torch.ops.rethink.float8_product(*given, *weight, None, torch.bfloat16)
        )
    float8_linear._FULL = usual
    return times


def gated(rows: int) -> dict[str, float]:
    """Of one layer, in both ways."""

    def plain(both: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = both.chunk(2, -1)
        return quantize_rows(silu(gate) * up)

    both, compiled = normal(rows, 2 * INNER), torch.compile(plain, dynamic=True, fullgraph=True)
    return {
        "compiled": milliseconds(lambda: compiled(both)),
        "kernel": milliseconds(lambda: quantize_gated(both)),
    }


if __name__ == "__main__":
    torch.manual_seed(0)
    with torch.inference_mode():
        main()
