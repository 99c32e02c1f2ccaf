"""Rows that `settle` left open: the mass above their candidates, and the choice among these.

Where no candidate stands, or top_k is larger than a heap, a row is searched in full passes, which
are slow, and just as exact.
"""

import triton
import triton.language as tl

from components.decoding.kernels.row import (
    CHUNK,
    FACTS,
    LOG2E,
    NOTHING,
    better,
    emit,
    fetch,
    noise_words,
    row_settings,
    scores,
    winner_of,
)
from components.decoding.kernels.settle import ordered


@triton.jit
def weigh(
    logits, stride, numbers, counts, size, seen, words,
    sums, facts, states, bound, chunks,
    SPLITS: tl.constexpr, PENALISES: tl.constexpr,
):  # fmt: skip
    """Sum the mass above each of a row's candidates, in one split of the row."""
    # Last rows first: `scan` read them last, so that they may still be in the cache.
    row = (tl.num_programs(1) - 1 - tl.program_id(1)).to(tl.int64)
    split = tl.program_id(0)
    if tl.load(states + row * FACTS) > 0:
        heat, noisy, most, part, lowest, penalty = row_settings(numbers, counts, size, row, bound)
        source = (logits + row * stride, bound, seen + row * words, penalty)
        facts += row * FACTS
        top = tl.load(facts)
        one = tl.load(facts + 4)
        two = tl.load(facts + 5)
        three = tl.load(facts + 6)
        above_one = tl.zeros((CHUNK,), tl.float32)
        above_two = tl.zeros((CHUNK,), tl.float32)
        above_three = tl.zeros((CHUNK,), tl.float32)
        inverse = 1.0 / heat
        begin = split * chunks
        for chunk in range(begin, min(begin + chunks, tl.cdiv(bound, CHUNK))):
            found = fetch(source, chunk * CHUNK + tl.arange(0, CHUNK), PENALISES)
            weights = tl.exp2((found - top) * LOG2E * inverse)
            above_one += tl.where(found > one, weights, 0.0)
            above_two += tl.where(found > two, weights, 0.0)
            above_three += tl.where(found > three, weights, 0.0)
        sums += (row * SPLITS + split) * 3
        tl.store(sums, tl.sum(above_one, axis=0))
        tl.store(sums + 1, tl.sum(above_two, axis=0))
        tl.store(sums + 2, tl.sum(above_three, axis=0))


@triton.jit
def _count(source, level, PENALISES: tl.constexpr):
    """How many logits of a row are at least `level`."""
    count = tl.zeros((CHUNK,), tl.int32)
    for start in range(0, source[1], CHUNK):
        ids = start + tl.arange(0, CHUNK)
        found = fetch(source, ids, PENALISES)
        count += ((found >= level) & (ids < source[1])).to(tl.int32)
    return tl.sum(count, axis=0)


@triton.jit
def _mass(source, top, heat, floor, least, PENALISES: tl.constexpr):
    """The mass of a row's logits that lie above `floor` and not below `least`."""
    mass = tl.zeros((CHUNK,), tl.float32)
    inverse = 1.0 / heat
    for start in range(0, source[1], CHUNK):
        found = fetch(source, start + tl.arange(0, CHUNK), PENALISES)
        weights = tl.exp2((found - top) * LOG2E * inverse)
        mass += tl.where((found > floor) & (found >= least), weights, 0.0)
    return tl.sum(mass, axis=0)


@triton.jit
def _smallest(source, top, most, PENALISES: tl.constexpr):
    """The `most`-th largest logit of a row, by halving the range of a float32's bits."""
    low = ordered(tl.full((), float("-inf"), tl.float32).to(tl.int32, bitcast=True))
    high = ordered(top.to(tl.int32, bitcast=True))
    while low < high:
        middle = (low | high) - ((low ^ high) >> 1)
        level = ordered(middle).to(tl.float32, bitcast=True)
        enough = _count(source, level, PENALISES) >= most
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
    return ordered(low).to(tl.float32, bitcast=True)


@triton.jit
def _sweep(source, rule, floor, least, PENALISES: tl.constexpr):
    """The winner above `floor` and its logit, in one exact pass over the row."""
    best = tl.full((CHUNK,), float("-inf"), tl.float32)
    peak = tl.full((CHUNK,), float("-inf"), tl.float32)
    winner = tl.full((CHUNK,), NOTHING, tl.int32)
    for start in range(0, source[1], CHUNK):
        ids = start + tl.arange(0, CHUNK)
        found = fetch(source, ids, PENALISES)
        scored = scores(found, ids, rule, floor, least)
        best, winner, peak = better(scored, ids, found, best, winner, peak)
    best, token, logit = winner_of(best, winner, peak)
    return token, logit


@triton.jit
def _search(source, rule, most, part, floor, goal, PENALISES: tl.constexpr):
    """The winner by full passes over the row."""
    top = rule[0]
    least = tl.full((), float("-inf"), tl.float32)
    if most > 0:
        least = _smallest(source, top, most, PENALISES)
        goal = part * _mass(source, top, rule[1], float("-inf"), least, PENALISES)
    token = tl.full((), -1, tl.int32)
    while token < 0:
        winner, floor = _sweep(source, rule, floor, least, PENALISES)
        if part >= 1:
            token = winner
        else:
            above = _mass(source, top, rule[1], floor, least, PENALISES)
            token = tl.where(above >= goal, -1, winner)
    return token


@triton.jit
def conclude(
    logits, stride, numbers, counts, size, seen, words,
    sums, facts, states, tokens, logprobs, bound,
    SPLITS: tl.constexpr, PENALISES: tl.constexpr,
):  # fmt: skip
    """Choose the id of a row that `settle` left open."""
    row = tl.program_id(0).to(tl.int64)
    facts += row * FACTS
    states += row * FACTS
    kept = tl.load(states)
    mode = tl.load(states + 2)
    if (kept > 0) | (mode > 0):
        heat, noisy, most, part, lowest, penalty = row_settings(numbers, counts, size, row, bound)
        source = (logits + row * stride, bound, seen + row * words, penalty)
        goal = tl.load(facts + 2)
        chosen = tl.full((), -1, tl.int32)
        for candidate in range(0, kept):
            parts = sums + row * SPLITS * 3 + tl.arange(0, SPLITS) * 3 + candidate
            fails = tl.sum(tl.load(parts), axis=0) >= goal
            this = tl.load(states + 3 + candidate)
            chosen = tl.where((chosen < 0) & (fails == 0), this, chosen)
        if chosen < 0:
            chosen = tl.load(states + 1)
        if chosen < 0:
            first, second = noise_words(counts, size, row)
            rule = (tl.load(facts), heat, noisy, lowest, first, second)
            chosen = _search(source, rule, most, part, tl.load(facts + 3), goal, PENALISES)
        emit(row, chosen, tl.load(facts + 1), source, tokens, logprobs, PENALISES)
