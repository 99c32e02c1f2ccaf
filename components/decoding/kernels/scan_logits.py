"""The one pass that reads all logits.

A row is cut into splits, a split into tiles, and a tile into lanes of adjacent ids, so a lane owns
the same columns of every tile. For every lane this pass writes its largest logit, its mass at the
row's temperature, and its reach: an upper bound of the noisy scores of its ids. The noise
-log(-log(1-v)) is at most -log(v), and the bits of a float32, read as an integer, bound its
logarithm, so that no logarithm is computed here.
"""

import triton
import triton.language as tl

from components.decoding.kernels.row import (
    LANES,
    LOG2E,
    TINY,
    constant,
    eligible,
    mix,
    mix_second_half,
    noise_words,
)

LOWEST = constant(-1e30)


@triton.jit
def _entropy_sums(raw, before, largest, total, moment):
    """Update lanes' sums of weights and of weights times (base 2) logits for a new tile.

    `before` and `largest` are the lanes' largest logits without and with the tile.
    """
    step = tl.maximum((before - largest) * LOG2E, -16000.0)
    shifted = (raw - largest[:, None]) * LOG2E
    shifted = tl.maximum(shifted, -288.0, propagate_nan=tl.PropagateNan.ALL)
    weights = tl.exp2(shifted)
    decay = tl.exp2(step)
    moment = decay * (moment + total * step) + tl.sum(weights * shifted, axis=1)
    return decay * total + tl.sum(weights, axis=1), moment


@triton.jit
def _mass_and_reach(logits, before, largest, mass, reach, words, inverse, draws):
    """Update lanes' mass at the temperature, and their reach, in base 2 relative to `largest`."""
    step = (before - largest) * LOG2E * inverse
    scaled = (logits - largest[:, None]) * LOG2E * inverse
    mass = mass * tl.exp2(step) + tl.sum(tl.exp2(scaled), axis=1)
    if draws:
        start, second = words
        column = tl.arange(0, logits.shape[1]).to(tl.uint32)
        # Lanes start at multiples of their width: adding a column is flipping low bits.
        start ^= start >> 16
        word = mix(mix_second_half(start[:, None] ^ column[None, :]) ^ second)
        bits = word.to(tl.float32).to(tl.int32, bitcast=True)
        best = scaled - bits.to(tl.float32) * 1.1920928955078125e-07
        reach = tl.maximum(reach + step, tl.max(best, axis=1))
    return mass, reach


@triton.jit
def scan_logits(
    logits, stride, numbers, counts, size, seen, words,
    lanes, sums, vocabulary, bound, tiles,
    SPLITS: tl.constexpr, WIDTH: tl.constexpr, PENALISES: tl.constexpr,
):  # fmt: skip
    """Summarize one split of a row."""
    row = tl.program_id(1).to(tl.int64)
    split = tl.program_id(0)
    TILE: tl.constexpr = LANES * WIDTH
    temperature = tl.load(numbers + row)
    inverse = 1.0 / tl.where(temperature > 0, tl.maximum(temperature, TINY), 1.0)
    penalty = tl.load(numbers + 3 * size + row)
    top_k = tl.load(counts + 2 * size + row)
    draws = (temperature > 0) & ((top_k <= 0) | (top_k > SPLITS * LANES // 2) | (top_k >= bound))
    first, second = noise_words(counts, size, row)
    logits += row * stride
    seen += row * words
    columns = (tl.arange(0, LANES) * WIDTH)[:, None] + tl.arange(0, WIDTH)[None, :]
    starts = tl.arange(0, LANES) * WIDTH
    largest = tl.full((LANES,), LOWEST, tl.float32)
    total = tl.zeros((LANES,), tl.float32)
    moment = tl.zeros((LANES,), tl.float32)
    mass = tl.zeros((LANES,), tl.float32)
    reach = tl.full((LANES,), float("-inf"), tl.float32)
    begin = split * tiles
    end = min(begin + tiles, tl.cdiv(vocabulary, TILE))
    middle = max(begin, min(end, 0 if PENALISES else bound // TILE))
    for tile in tl.range(begin, middle, num_stages=3):
        raw = tl.load(logits + tile * TILE + columns).to(tl.float32)
        key = ((tile * TILE + starts).to(tl.uint32) ^ first, second)
        before = largest
        largest = tl.maximum(before, tl.max(raw, axis=1))
        total, moment = _entropy_sums(raw, before, largest, total, moment)
        mass, reach = _mass_and_reach(raw, before, largest, mass, reach, key, inverse, draws)
    top = largest  # of the logits to draw from; from here on they may differ from the raw ones
    for tile in range(middle, end):
        ids = tile * TILE + columns
        raw = tl.load(logits + ids, mask=ids < vocabulary, other=float("-inf")).to(tl.float32)
        key = ((tile * TILE + starts).to(tl.uint32) ^ first, second)
        before = largest
        largest = tl.maximum(before, tl.max(raw, axis=1))
        total, moment = _entropy_sums(raw, before, largest, total, moment)
        drawn = eligible(raw, ids, bound, seen, penalty, PENALISES)
        before = top
        top = tl.maximum(before, tl.max(drawn, axis=1))
        mass, reach = _mass_and_reach(drawn, before, top, mass, reach, key, inverse, draws)
    span = tl.num_programs(1) * SPLITS * LANES
    lanes += (row * SPLITS + split) * LANES + tl.arange(0, LANES)
    tl.store(lanes, top)
    tl.store(lanes + span, mass)
    tl.store(lanes + 2 * span, reach)
    peak = tl.max(largest, axis=0)
    step = tl.maximum((largest - peak) * LOG2E, -16000.0)
    sums += (row * SPLITS + split) * 3
    tl.store(sums, peak)
    tl.store(sums + 1, tl.sum(total * tl.exp2(step), axis=0))
    tl.store(sums + 2, tl.sum(tl.exp2(step) * (moment + total * step), axis=0))
