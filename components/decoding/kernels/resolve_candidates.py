"""A row's entropy, and its token as far as the sums of its lanes decide it.

`scan_logits` bounded the noisy score that any id of a lane can have. Here the few lanes that may
hold the best id are read again, exactly. The best id passes top_p if the ids with larger logits
hold less mass than top_p allows. If it fails, every id with a logit no larger fails too, and the
best of the larger ones is the next candidate. Often the lanes' masses decide this; candidates that
they cannot decide are left open, for `total_mass` and `finish_draw`.

A row with top_k gathers all ids whose logit reaches a level that at least k lanes reach, so that
the k largest are among them, and filters those.
"""

import triton
import triton.language as tl

from components.decoding.kernels.row import (
    LANES,
    LN2,
    LOG2E,
    NO_ID,
    ROW_WIDTH,
    best_of,
    better,
    constant,
    emit,
    fetch,
    noise_words,
    noisy_scores,
    row_sampling,
)

MAX_OPEN = constant(3)  # candidates of a row that may be left open
MAX_LANES_READ = constant(24)  # after these a row is left to full passes
HEAP = constant(1024)  # ids that can be gathered for top_k
BLOCK = constant(128)  # ids of the heap that are filtered at a time
LANES_AT_ONCE = constant(8)  # lanes gathered at a time
EXPONENT_OFFSET = constant(
    159.0
)  # a word is 2^32 times v, and the exponent of a float32 is offset by 127


@triton.jit
def _entropy_and_logsumexp(sums, SPLITS: tl.constexpr):
    """A row's entropy and log-sum-exp from the sums of its splits."""
    split = tl.arange(0, SPLITS) * 3
    peaks = tl.load(sums + split)
    peak = tl.max(peaks, axis=0)
    step = tl.maximum((peaks - peak) * LOG2E, -16000.0)
    totals = tl.load(sums + split + 1)
    total = tl.sum(totals * tl.exp2(step), axis=0)
    moments = tl.exp2(step) * (tl.load(sums + split + 2) + totals * step)
    return tl.log(total) - tl.sum(moments, axis=0) * LN2 / total, peak + tl.log(total)


@triton.jit
def _lane_ids(lane, tiles, WIDTH: tl.constexpr, SPAN: tl.constexpr):
    """The ids of a lane, or of several [lanes, 1]; `NO_ID` past its last tile."""
    place = tl.arange(0, SPAN)
    ids = (lane // LANES * tiles + place // WIDTH) * (LANES * WIDTH)
    ids += lane % LANES * WIDTH + place % WIDTH
    return tl.where(place < tiles * WIDTH, ids, NO_ID)


@triton.jit
def _best_candidate(
    reach, lanes_read, floor, source, scoring, tiles,
    WIDTH: tl.constexpr, SPAN: tl.constexpr, PENALISES: tl.constexpr,
):  # fmt: skip
    """The best id above `floor` and its logit; lanes are read in the order of their reach."""
    best = tl.full((), float("-inf"), tl.float32)
    peak = tl.full((), float("-inf"), tl.float32)
    winner = tl.full((), NO_ID, tl.int32)
    next_reach, lane = tl.max(reach, axis=0, return_indices=True)
    while (next_reach >= best) & (next_reach > float("-inf")) & (lanes_read < MAX_LANES_READ):
        ids = _lane_ids(lane, tiles, WIDTH, SPAN)
        logits = fetch(source, ids, PENALISES)
        scored = noisy_scores(logits, ids, scoring, floor, float("-inf"))
        score, token, logit = best_of(scored, ids, logits)
        best, winner, peak = better(score, token, logit, best, winner, peak)
        reach = tl.where(tl.arange(0, reach.shape[0]) == lane, float("-inf"), reach)
        next_reach, lane = tl.max(reach, axis=0, return_indices=True)
        lanes_read += 1
    return winner, peak, lanes_read


@triton.jit
def ordered(number):
    """Map a float32's bits to an integer of the same order, or back."""
    return number ^ ((number >> 31) & 0x7FFFFFFF)


@triton.jit
def _top_k_level(peaks, top, top_k):
    """A logit that at least `top_k` lanes reach, and not many more."""
    keys = ordered(peaks.to(tl.int32, bitcast=True))
    low = tl.min(keys, axis=0)
    high = ordered(top.to(tl.int32, bitcast=True))
    reached = tl.full((), peaks.shape[0], tl.int32)
    while (low < high) & (reached > top_k + 8):
        middle = (low | high) - ((low ^ high) >> 1)
        count = tl.sum((keys >= middle).to(tl.int32), axis=0)
        enough = count >= top_k
        reached = tl.where(enough, count, reached)
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
    return ordered(low).to(tl.float32, bitcast=True)


@triton.jit
def _gather(
    peaks, level, listed, heap, source, tiles,
    WIDTH: tl.constexpr, SPAN: tl.constexpr, PENALISES: tl.constexpr,
):  # fmt: skip
    """Write the logits that reach `level`, and their ids, to the heap; return how many."""
    flags = (peaks >= level).to(tl.int32)
    tl.store(listed + tl.cumsum(flags, 0) - 1, tl.arange(0, peaks.shape[0]), mask=flags != 0)
    count = tl.sum(flags, axis=0)
    filled = tl.full((), 0, tl.int32)
    tl.debug_barrier()
    for start in range(0, count, LANES_AT_ONCE):
        places = start + tl.arange(0, LANES_AT_ONCE)
        lane = tl.load(listed + places, mask=places < count, other=0)
        ids = _lane_ids(lane[:, None], tiles, WIDTH, SPAN)
        ids = tl.reshape(tl.where((places < count)[:, None], ids, NO_ID), (LANES_AT_ONCE * SPAN,))
        logits = fetch(source, ids, PENALISES)
        passes = ((logits >= level) & (ids < source[1])).to(tl.int32)
        slots = filled + tl.cumsum(passes, 0) - 1
        fits = (passes != 0) & (slots < HEAP)
        tl.store(heap[0] + slots, logits, mask=fits)
        tl.store(heap[1] + slots, ids, mask=fits)
        filled += tl.sum(passes, axis=0)
    tl.debug_barrier()
    return filled


@triton.jit
def _mass_above(heap, filled, top_k, top, inverse):
    """Write the mass above each entry (infinite outside top_k); return the mass of top_k."""
    total = tl.full((), 0.0, tl.float32)
    for begin in range(0, filled, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        logits = tl.load(heap[0] + place, mask=place < filled, other=float("-inf"))
        above = tl.zeros((BLOCK,), tl.int32)
        mass = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, filled, 8):
            beside = start + tl.arange(0, 8)
            others = tl.load(heap[0] + beside, mask=beside < filled, other=float("-inf"))
            larger = others[None, :] > logits[:, None]
            above += tl.sum(larger.to(tl.int32), axis=1)
            weights = tl.exp2((others - top) * inverse)
            mass += tl.sum(tl.where(larger, weights[None, :], 0.0), axis=1)
        passes = (place < filled) & (above < top_k)
        total += tl.sum(tl.where(passes, tl.exp2((logits - top) * inverse), 0.0), axis=0)
        tl.store(heap[2] + place, tl.where(passes, mass, float("inf")), mask=place < filled)
    tl.debug_barrier()
    return total


@triton.jit
def _draw_from_heap(heap, filled, top_k, top_p, scoring):
    """The best of the heap's entries that pass top_k, top_p and min_p."""
    allowed_mass = top_p * _mass_above(heap, filled, top_k, scoring[0], LOG2E / scoring[1])
    allowed_mass = tl.where(top_p >= 1, 3e38, allowed_mass)
    best = tl.full((), float("-inf"), tl.float32)
    peak = tl.full((), float("-inf"), tl.float32)
    winner = tl.full((), NO_ID, tl.int32)
    for begin in range(0, filled, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        logits = tl.load(heap[0] + place, mask=place < filled, other=float("-inf"))
        ids = tl.load(heap[1] + place, mask=place < filled, other=NO_ID)
        mass = tl.load(heap[2] + place, mask=place < filled, other=float("inf"))
        scored = noisy_scores(logits, ids, scoring, float("-inf"), float("-inf"))
        scored = tl.where(mass < allowed_mass, scored, float("-inf"))
        score, token, logit = best_of(scored, ids, logits)
        best, winner, peak = better(score, token, logit, best, winner, peak)
    return winner


@triton.jit
def _draw_from_lanes(
    lanes, span, peaks, top_p, source, scoring, tiles, row_floats, row_ints,
    WIDTH: tl.constexpr, SPAN: tl.constexpr, PENALISES: tl.constexpr,
):  # fmt: skip
    """The id of a row without top_k; candidates before it that are undecided are written.

    Returns the id or -1, how many candidates are open, whether the row needs full passes, the
    logit above which they go on, and the mass that top_p allows.
    """
    top, temperature, noise_scale, log_min_p, first, second = scoring
    scaled = (peaks - top) * (LOG2E / temperature)
    weights = tl.exp2(scaled)
    mass = tl.load(lanes + span) * weights
    allowed_mass = top_p * tl.sum(mass, axis=0)
    reach = (tl.load(lanes + 2 * span) + scaled + EXPONENT_OFFSET) * LN2
    slack = 1e-3 + 1e-5 * tl.abs(reach)
    reach = tl.where(reach > float("-inf"), reach + slack, reach)
    reach = tl.where(noise_scale > 0, reach, peaks - top)
    lanes_read = tl.full((), 0, tl.int32)
    num_open = tl.full((), 0, tl.int32)
    mode = tl.full((), 0, tl.int32)
    token = tl.full((), -1, tl.int32)
    floor = tl.full((), float("-inf"), tl.float32)
    while (token < 0) & (mode == 0):
        winner, logit, lanes_read = _best_candidate(
            reach, lanes_read, floor, source, scoring, tiles, WIDTH, SPAN, PENALISES
        )
        max_above = tl.sum(tl.where(peaks > logit, mass, 0.0), axis=0) * 1.00001
        min_above = tl.sum(tl.where(peaks > logit, weights, 0.0), axis=0) * 0.99999
        if lanes_read >= MAX_LANES_READ:
            mode += 1
        elif (top_p >= 1) | (max_above < allowed_mass):
            token = winner
        else:
            if (min_above < allowed_mass) | (allowed_mass != allowed_mass):
                tl.store(row_floats + num_open, logit)
                tl.store(row_ints + num_open, winner)
                num_open += 1
            floor = logit
            mode += (num_open == MAX_OPEN).to(tl.int32)
    return token, num_open, mode, floor, allowed_mass


@triton.jit
def resolve_candidates(
    logits, stride, numbers, counts, size, seen, words,
    lanes, sums, row_floats, row_ints, listed, heap, heap_ids, heap_mass,
    tokens, entropies, logprobs, bound, tiles,
    SPLITS: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr, PENALISES: tl.constexpr,
):  # fmt: skip
    """Measure a row and draw its id, or leave it to `total_mass` and `finish_draw`.

    `row_floats` of a row: largest logit, log-sum-exp, mass that top_p allows, logit above which
    full passes continue, logits of the open candidates. `row_ints`: number of open candidates, the
    id if all of them fail or -1, whether full passes are needed (1; 2 for a top_k that the heap
    cannot hold), ids of the open candidates.
    """
    N: tl.constexpr = SPLITS * LANES
    row = tl.program_id(0).to(tl.int64)
    temperature, noise_scale, top_k, top_p, log_min_p, penalty = row_sampling(
        numbers, counts, size, row, bound
    )
    first, second = noise_words(counts, size, row)
    source = (logits + row * stride, bound, seen + row * words, penalty)
    row_floats += row * ROW_WIDTH
    row_ints += row * ROW_WIDTH
    entropy, total = _entropy_and_logsumexp(sums + row * SPLITS * 3, SPLITS)
    tl.store(entropies + row, entropy)
    lanes += row * N + tl.arange(0, N)
    peaks = tl.load(lanes)
    top = tl.max(peaks, axis=0)
    scoring = (top, temperature, noise_scale, log_min_p, first, second)
    num_open = tl.full((), 0, tl.int32)
    mode = tl.full((), 0, tl.int32)
    token = tl.full((), -1, tl.int32)
    floor = tl.full((), float("-inf"), tl.float32)
    allowed_mass = tl.full((), 0.0, tl.float32)
    if top_k > N // 2:
        mode += 2
    elif top_k > 0:
        level = _top_k_level(peaks, top, top_k)
        entries = (heap + row * HEAP, heap_ids + row * HEAP, heap_mass + row * HEAP)
        filled = _gather(
            peaks, level, listed + row * N, entries, source, tiles, WIDTH, SPAN, PENALISES
        )
        if filled > HEAP:
            mode += 2
        else:
            token = _draw_from_heap(entries, filled, top_k, top_p, scoring)
    else:
        span = tl.num_programs(0) * N
        token, num_open, mode, floor, allowed_mass = _draw_from_lanes(
            lanes, span, peaks, top_p, source, scoring, tiles, row_floats + 4, row_ints + 3,
            WIDTH, SPAN, PENALISES,
        )  # fmt: skip
    tl.store(row_floats, top)
    tl.store(row_floats + 1, total)
    tl.store(row_floats + 2, allowed_mass)
    tl.store(row_floats + 3, floor)
    tl.store(row_ints, num_open)
    tl.store(row_ints + 1, token)
    tl.store(row_ints + 2, mode)
    if (num_open == 0) & (mode == 0):
        emit(row, token, total, source, tokens, logprobs, PENALISES)
