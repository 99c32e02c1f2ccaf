"""A row's entropy, and its token as far as the lanes tell.

`scan` bounded what every lane may reach; here the few that may hold the winner are looked at again,
exactly. The winner stands under top_p if the ids with larger logits hold less mass than top_p
allows. If not, every id with a logit no larger falls with it, and the best of the larger ones is
next. Often the lanes' masses tell; the candidates that they cannot tell about are left open.

A row with top_k gathers the ids from a logit on that at least k lanes reach, so that the k largest
are among them, and filters those.
"""

import triton
import triton.language as tl

from components.decoding.kernels.row import (
    FACTS,
    LANES,
    LN2,
    LOG2E,
    NOTHING,
    better,
    constant,
    emit,
    fetch,
    noise_words,
    row_settings,
    scores,
    winner_of,
)

CANDIDATES = constant(3)  # open at most, of a row
LOOKS = constant(24)  # lanes looked at before a row is left to full passes
HEAP = constant(1024)  # most ids gathered for top_k
BLOCK = constant(128)  # of them, filtered at a time
ABREAST = constant(8)  # lanes gathered at a time
UNIT = constant(159.0)  # a word is 2^32 times v, and the exponent of a float32 is offset by 127


@triton.jit
def _observe(sums, SPLITS: tl.constexpr):
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
    """The ids of a lane, or of several [lanes, 1]; `NOTHING` past its last tile."""
    place = tl.arange(0, SPAN)
    ids = (lane // LANES * tiles + place // WIDTH) * (LANES * WIDTH)
    ids += lane % LANES * WIDTH + place % WIDTH
    return tl.where(place < tiles * WIDTH, ids, NOTHING)


@triton.jit
def _seek(
    reach, looks, floor, source, rule, tiles,
    WIDTH: tl.constexpr, SPAN: tl.constexpr, PENALISES: tl.constexpr,
):  # fmt: skip
    """The winner above `floor` and its logit; lanes are looked at in the order of their reach."""
    best = tl.full((), float("-inf"), tl.float32)
    peak = tl.full((), float("-inf"), tl.float32)
    winner = tl.full((), NOTHING, tl.int32)
    ahead, lane = tl.max(reach, axis=0, return_indices=True)
    while (ahead >= best) & (ahead > float("-inf")) & (looks < LOOKS):
        ids = _lane_ids(lane, tiles, WIDTH, SPAN)
        logits = fetch(source, ids, PENALISES)
        scored = scores(logits, ids, rule, floor, float("-inf"))
        score, token, logit = winner_of(scored, ids, logits)
        best, winner, peak = better(score, token, logit, best, winner, peak)
        reach = tl.where(tl.arange(0, reach.shape[0]) == lane, float("-inf"), reach)
        ahead, lane = tl.max(reach, axis=0, return_indices=True)
        looks += 1
    return winner, peak, looks


@triton.jit
def ordered(number):
    """A float32's bits as an integer of the same order, and back."""
    return number ^ ((number >> 31) & 0x7FFFFFFF)


@triton.jit
def _level(peaks, top, most):
    """A logit that at least `most` lanes reach, and few more."""
    keys = ordered(peaks.to(tl.int32, bitcast=True))
    low = tl.min(keys, axis=0)
    high = ordered(top.to(tl.int32, bitcast=True))
    reached = tl.full((), peaks.shape[0], tl.int32)
    while (low < high) & (reached > most + 8):
        middle = (low | high) - ((low ^ high) >> 1)
        count = tl.sum((keys >= middle).to(tl.int32), axis=0)
        enough = count >= most
        reached = tl.where(enough, count, reached)
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
    return ordered(low).to(tl.float32, bitcast=True)


@triton.jit
def _gather(
    peaks, level, listed, heap, source, tiles,
    WIDTH: tl.constexpr, SPAN: tl.constexpr, PENALISES: tl.constexpr,
):  # fmt: skip
    """Write logits from `level` on and their ids to the heap; how many there are."""
    flags = (peaks >= level).to(tl.int32)
    tl.store(listed + tl.cumsum(flags, 0) - 1, tl.arange(0, peaks.shape[0]), mask=flags != 0)
    count = tl.sum(flags, axis=0)
    filled = tl.full((), 0, tl.int32)
    tl.debug_barrier()
    for start in range(0, count, ABREAST):
        places = start + tl.arange(0, ABREAST)
        lane = tl.load(listed + places, mask=places < count, other=0)
        ids = _lane_ids(lane[:, None], tiles, WIDTH, SPAN)
        ids = tl.reshape(tl.where((places < count)[:, None], ids, NOTHING), (ABREAST * SPAN,))
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
def _rank(heap, filled, most, top, inverse):
    """Note the mass above each entry, infinite outside of top_k; the mass of top_k."""
    whole = tl.full((), 0.0, tl.float32)
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
        kept = (place < filled) & (above < most)
        whole += tl.sum(tl.where(kept, tl.exp2((logits - top) * inverse), 0.0), axis=0)
        tl.store(heap[2] + place, tl.where(kept, mass, float("inf")), mask=place < filled)
    tl.debug_barrier()
    return whole


@triton.jit
def _among(heap, filled, most, part, rule):
    """The winner among the heap's entries that pass top_k, top_p and min_p."""
    goal = part * _rank(heap, filled, most, rule[0], LOG2E / rule[1])
    goal = tl.where(part >= 1, 3e38, goal)
    best = tl.full((), float("-inf"), tl.float32)
    peak = tl.full((), float("-inf"), tl.float32)
    winner = tl.full((), NOTHING, tl.int32)
    for begin in range(0, filled, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        logits = tl.load(heap[0] + place, mask=place < filled, other=float("-inf"))
        ids = tl.load(heap[1] + place, mask=place < filled, other=NOTHING)
        mass = tl.load(heap[2] + place, mask=place < filled, other=float("inf"))
        scored = scores(logits, ids, rule, float("-inf"), float("-inf"))
        scored = tl.where(mass < goal, scored, float("-inf"))
        score, token, logit = winner_of(scored, ids, logits)
        best, winner, peak = better(score, token, logit, best, winner, peak)
    return winner


@triton.jit
def _choose(
    lanes, span, peaks, part, source, rule, tiles, facts, states,
    WIDTH: tl.constexpr, SPAN: tl.constexpr, PENALISES: tl.constexpr,
):  # fmt: skip
    """The id of a row without top_k, after writing the open candidates before it.

    Returns the id or -1, how many candidates are open, whether the row needs full passes, the
    logit above which they go on, and the mass that top_p allows.
    """
    top, heat, noisy, lowest, first, second = rule
    scaled = (peaks - top) * (LOG2E / heat)
    weights = tl.exp2(scaled)
    mass = tl.load(lanes + span) * weights
    goal = part * tl.sum(mass, axis=0)
    reach = (tl.load(lanes + 2 * span) + scaled + UNIT) * LN2
    slack = 1e-3 + 1e-5 * tl.abs(reach)
    reach = tl.where(reach > float("-inf"), reach + slack, reach)
    reach = tl.where(noisy > 0, reach, peaks - top)
    looks = tl.full((), 0, tl.int32)
    kept = tl.full((), 0, tl.int32)
    mode = tl.full((), 0, tl.int32)
    token = tl.full((), -1, tl.int32)
    floor = tl.full((), float("-inf"), tl.float32)
    while (token < 0) & (mode == 0):
        winner, logit, looks = _seek(
            reach, looks, floor, source, rule, tiles, WIDTH, SPAN, PENALISES
        )
        most_above = tl.sum(tl.where(peaks > logit, mass, 0.0), axis=0) * 1.00001
        least_above = tl.sum(tl.where(peaks > logit, weights, 0.0), axis=0) * 0.99999
        if looks >= LOOKS:
            mode += 1
        elif (part >= 1) | (most_above < goal):
            token = winner
        else:
            if (least_above < goal) | (goal != goal):
                tl.store(facts + kept, logit)
                tl.store(states + kept, winner)
                kept += 1
            floor = logit
            mode += (kept == CANDIDATES).to(tl.int32)
    return token, kept, mode, floor, goal


@triton.jit
def settle(
    logits, stride, numbers, counts, size, seen, words,
    lanes, sums, facts, states, listed, heap, heap_ids, heap_mass,
    tokens, entropies, logprobs, bound, tiles,
    SPLITS: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr, PENALISES: tl.constexpr,
):  # fmt: skip
    """Measure a row and choose its id, or leave it to `weigh` and `conclude`.

    `facts` of a row: largest logit, log-sum-exp, mass that top_p allows, logit above which full
    passes go on, logits of candidates. `states`: how many of them are open, the id after them or
    -1, whether full passes are needed (1, and 2 for a top_k that the heap cannot hold), their ids.
    """
    N: tl.constexpr = SPLITS * LANES
    row = tl.program_id(0).to(tl.int64)
    heat, noisy, most, part, lowest, penalty = row_settings(numbers, counts, size, row, bound)
    first, second = noise_words(counts, size, row)
    source = (logits + row * stride, bound, seen + row * words, penalty)
    facts += row * FACTS
    states += row * FACTS
    entropy, total = _observe(sums + row * SPLITS * 3, SPLITS)
    tl.store(entropies + row, entropy)
    lanes += row * N + tl.arange(0, N)
    peaks = tl.load(lanes)
    top = tl.max(peaks, axis=0)
    rule = (top, heat, noisy, lowest, first, second)
    kept = tl.full((), 0, tl.int32)
    mode = tl.full((), 0, tl.int32)
    token = tl.full((), -1, tl.int32)
    floor = tl.full((), float("-inf"), tl.float32)
    goal = tl.full((), 0.0, tl.float32)
    if most > N // 2:
        mode += 2
    elif most > 0:
        level = _level(peaks, top, most)
        entries = (heap + row * HEAP, heap_ids + row * HEAP, heap_mass + row * HEAP)
        filled = _gather(
            peaks, level, listed + row * N, entries, source, tiles, WIDTH, SPAN, PENALISES
        )
        if filled > HEAP:
            mode += 2
        else:
            token = _among(entries, filled, most, part, rule)
    else:
        span = tl.num_programs(0) * N
        token, kept, mode, floor, goal = _choose(
            lanes, span, peaks, part, source, rule, tiles, facts + 4, states + 3,
            WIDTH, SPAN, PENALISES,
        )  # fmt: skip
    tl.store(facts, top)
    tl.store(facts + 1, total)
    tl.store(facts + 2, goal)
    tl.store(facts + 3, floor)
    tl.store(states, kept)
    tl.store(states + 1, token)
    tl.store(states + 2, mode)
    if (kept == 0) & (mode == 0):
        emit(row, token, total, source, tokens, logprobs, PENALISES)
