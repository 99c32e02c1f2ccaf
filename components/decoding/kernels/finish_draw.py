"""Rows that `resolve_candidates` left open: the mass above their candidates, and the final draw.

Where every candidate fails top_p, or top_k is larger than the heap, a row is searched by full
passes, which are slow but just as exact.
"""

import triton
import triton.language as tl

from components.decoding.kernels.resolve_candidates import ordered
from components.decoding.kernels.row import (
    CHUNK,
    LOG2E,
    NO_ID,
    ROW_WIDTH,
    best_of,
    better,
    emit,
    fetch,
    noise_words,
    noisy_scores,
    row_sampling,
)


@triton.jit
def total_mass(
    logits, stride, numbers, counts, size, seen, words,
    sums, row_floats, row_ints, bound, chunks,
    SPLITS: tl.constexpr, PENALISES: tl.constexpr,
):  # fmt: skip
    """Sum the mass above each of a row's candidates, in one split of the row."""
    # Last rows first: `scan_logits` read them last, so they may still be in the cache.
    row = (tl.num_programs(1) - 1 - tl.program_id(1)).to(tl.int64)
    split = tl.program_id(0)
    if tl.load(row_ints + row * ROW_WIDTH) > 0:
        temperature, noise_scale, top_k, top_p, log_min_p, penalty = row_sampling(
            numbers, counts, size, row, bound
        )
        source = (logits + row * stride, bound, seen + row * words, penalty)
        row_floats += row * ROW_WIDTH
        top = tl.load(row_floats)
        first_logit = tl.load(row_floats + 4)
        second_logit = tl.load(row_floats + 5)
        third_logit = tl.load(row_floats + 6)
        above_first = tl.zeros((CHUNK,), tl.float32)
        above_second = tl.zeros((CHUNK,), tl.float32)
        above_third = tl.zeros((CHUNK,), tl.float32)
        inverse = 1.0 / temperature
        begin = split * chunks
        for chunk in range(begin, min(begin + chunks, tl.cdiv(bound, CHUNK))):
            values = fetch(source, chunk * CHUNK + tl.arange(0, CHUNK), PENALISES)
            weights = tl.exp2((values - top) * LOG2E * inverse)
            above_first += tl.where(values > first_logit, weights, 0.0)
            above_second += tl.where(values > second_logit, weights, 0.0)
            above_third += tl.where(values > third_logit, weights, 0.0)
        sums += (row * SPLITS + split) * 3
        tl.store(sums, tl.sum(above_first, axis=0))
        tl.store(sums + 1, tl.sum(above_second, axis=0))
        tl.store(sums + 2, tl.sum(above_third, axis=0))


@triton.jit
def _count(source, level, PENALISES: tl.constexpr):
    """How many logits of a row are at least `level`."""
    count = tl.zeros((CHUNK,), tl.int32)
    for start in range(0, source[1], CHUNK):
        ids = start + tl.arange(0, CHUNK)
        values = fetch(source, ids, PENALISES)
        count += ((values >= level) & (ids < source[1])).to(tl.int32)
    return tl.sum(count, axis=0)


@triton.jit
def _mass(source, top, temperature, floor, min_logit, PENALISES: tl.constexpr):
    """The mass of a row's logits above `floor` and not below `min_logit`."""
    mass = tl.zeros((CHUNK,), tl.float32)
    inverse = 1.0 / temperature
    for start in range(0, source[1], CHUNK):
        values = fetch(source, start + tl.arange(0, CHUNK), PENALISES)
        weights = tl.exp2((values - top) * LOG2E * inverse)
        mass += tl.where((values > floor) & (values >= min_logit), weights, 0.0)
    return tl.sum(mass, axis=0)


@triton.jit
def _top_k_logit(source, top, top_k, PENALISES: tl.constexpr):
    """The `top_k`-th largest logit of a row, by bisection of a float32's bits."""
    low = ordered(tl.full((), float("-inf"), tl.float32).to(tl.int32, bitcast=True))
    high = ordered(top.to(tl.int32, bitcast=True))
    while low < high:
        middle = (low | high) - ((low ^ high) >> 1)
        level = ordered(middle).to(tl.float32, bitcast=True)
        enough = _count(source, level, PENALISES) >= top_k
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
    return ordered(low).to(tl.float32, bitcast=True)


@triton.jit
def _best_in_row(source, scoring, floor, min_logit, PENALISES: tl.constexpr):
    """The best id above `floor` and its logit, in one exact pass over the row."""
    best = tl.full((CHUNK,), float("-inf"), tl.float32)
    peak = tl.full((CHUNK,), float("-inf"), tl.float32)
    winner = tl.full((CHUNK,), NO_ID, tl.int32)
    for start in range(0, source[1], CHUNK):
        ids = start + tl.arange(0, CHUNK)
        values = fetch(source, ids, PENALISES)
        scored = noisy_scores(values, ids, scoring, floor, min_logit)
        best, winner, peak = better(scored, ids, values, best, winner, peak)
    best, token, logit = best_of(best, winner, peak)
    return token, logit


@triton.jit
def _draw_by_full_passes(
    source, scoring, top_k, top_p, floor, allowed_mass, PENALISES: tl.constexpr
):
    """Draw an id by full passes over the row."""
    top = scoring[0]
    min_logit = tl.full((), float("-inf"), tl.float32)
    if top_k > 0:
        min_logit = _top_k_logit(source, top, top_k, PENALISES)
        allowed_mass = top_p * _mass(source, top, scoring[1], float("-inf"), min_logit, PENALISES)
    token = tl.full((), -1, tl.int32)
    while token < 0:
        winner, floor = _best_in_row(source, scoring, floor, min_logit, PENALISES)
        if top_p >= 1:
            token = winner
        else:
            above = _mass(source, top, scoring[1], floor, min_logit, PENALISES)
            token = tl.where(above >= allowed_mass, -1, winner)
    return token


@triton.jit
def finish_draw(
    logits, stride, numbers, counts, size, seen, words,
    sums, row_floats, row_ints, tokens, logprobs, bound,
    SPLITS: tl.constexpr, PENALISES: tl.constexpr,
):  # fmt: skip
    """Draw the id of a row that `resolve_candidates` left open."""
    row = tl.program_id(0).to(tl.int64)
    row_floats += row * ROW_WIDTH
    row_ints += row * ROW_WIDTH
    num_open = tl.load(row_ints)
    mode = tl.load(row_ints + 2)
    if (num_open > 0) | (mode > 0):
        temperature, noise_scale, top_k, top_p, log_min_p, penalty = row_sampling(
            numbers, counts, size, row, bound
        )
        source = (logits + row * stride, bound, seen + row * words, penalty)
        allowed_mass = tl.load(row_floats + 2)
        token = tl.full((), -1, tl.int32)
        for candidate in range(0, num_open):
            masses = sums + row * SPLITS * 3 + tl.arange(0, SPLITS) * 3 + candidate
            fails = tl.sum(tl.load(masses), axis=0) >= allowed_mass
            candidate_id = tl.load(row_ints + 3 + candidate)
            token = tl.where((token < 0) & (fails == 0), candidate_id, token)
        if token < 0:
            token = tl.load(row_ints + 1)
        if token < 0:
            first, second = noise_words(counts, size, row)
            scoring = (tl.load(row_floats), temperature, noise_scale, log_min_p, first, second)
            token = _draw_by_full_passes(
                source, scoring, top_k, top_p, tl.load(row_floats + 3), allowed_mass, PENALISES
            )
        emit(row, token, tl.load(row_floats + 1), source, tokens, logprobs, PENALISES)
