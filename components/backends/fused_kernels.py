"""The Triton kernels behind `fused.FusedSampler`: raw entropy and an exact draw, without a sort.

A row is cut into splits, a split into tiles, a tile into lanes of neighbouring ids, so that a lane
owns the same columns of every tile. Four launches, the last two of which most rows leave at once:

- `scan` reads the logits once. It sums up entropy, and for every lane notes the largest logit, the
  mass at the row's temperature, and the race: the best that any of its ids could reach with its
  noise. The noise -log(-log(1-v)) is at most -log(v), so one fast logarithm bounds it.
- `settle` looks again, now exactly, at the few lanes that may hold the winner. The winner of a row
  with top_p stands if the ids with larger logits hold less mass than top_p allows. If not, every id
  that is no larger falls with it, and the best of the larger ones is next. The lanes' masses
  often tell; candidates that they cannot tell about are noted. A row with top_k gathers the ids
  above a logit that at least k lanes reach, and filters among these.
- `weigh` reads the logits of rows with open candidates and sums the mass above each.
- `conclude` picks the first candidate that stands. Rows for which nothing above sufficed (a huge
  top_k, ties by the thousand) are searched here in full passes: slow, and just as exact.

`rows` are parameters [4, rows] of temperature, top_p, min_p and repetition penalty, `counts`
those [3, rows] of seed, index and top_k.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice


def _constant(value):
    # Triton's interpreter, which tests run on the CPU, does no arithmetic on its own constants.
    return value if triton.knobs.runtime.interpret else tl.constexpr(value)


LANES = _constant(256)  # of a split
CANDIDATES = _constant(3)  # open at most, of a row
FACTS = _constant(8)  # numbers kept of a row between launches
HEAP = _constant(1024)  # most ids gathered for top_k
LOOKS = _constant(24)  # lanes looked at again before a row goes to full passes
CHUNK = _constant(2048)  # ids of one step of a full pass
LOG2E = _constant(1.4426950408889634)
LN2 = _constant(0.6931471805599453)
LOWEST = _constant(-1e30)
NOTHING = _constant(2147483647)


@triton.jit
def _spread(word):
    word *= 0x7FEB352D
    word ^= word >> 15
    word *= 0x846CA68B
    return word ^ (word >> 16)


@triton.jit
def _mix(word):
    return _spread(word ^ (word >> 16))


@triton.jit
def _keys(counts, size, row):
    """The two words that a row's noise is made from."""
    seed = tl.load(counts + row)
    index = tl.load(counts + size + row)
    first = _mix(seed.to(tl.uint32) ^ _mix(index.to(tl.uint32)))
    second = _mix((seed >> 32).to(tl.uint32) ^ _mix(first + 0x9E3779B9))
    return first, second


@triton.jit
def _noise(ids, first, second):
    """The field that `sampling.noise` defines, rounded as it rounds."""
    word = _mix(_mix(ids.to(tl.uint32) ^ first) ^ second)
    uniform = ((word & 255).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    uniform += (word >> 8).to(tl.float32) * 5.9604644775390625e-08
    uniform = tl.minimum(uniform, 0.99999994039535522)
    series = uniform * uniform * 0.5 + uniform
    return -tl.log(tl.where(uniform < 0.0009765625, series, -tl.log(1.0 - uniform)))


@triton.jit
def _fast_log2(value, FAST: tl.constexpr):
    if FAST:
        return libdevice.fast_log2f(value)
    else:
        return tl.log2(value)


@triton.jit
def _eligible(raw, ids, bound, seen, penalty, PENALISES: tl.constexpr):
    """Logits to draw from: after the repetition penalty, minus infinity from id `bound` on."""
    if PENALISES:
        words = tl.load(seen + (ids >> 5), mask=ids < bound, other=0)
        lowered = tl.where(raw < 0, raw * penalty, tl.div_rn(raw, penalty))
        raw = tl.where((words >> (ids & 31)) & 1 != 0, lowered, raw)
    return tl.where(ids < bound, raw, float("-inf"))


@triton.jit
def _fetch(logits, ids, bound, seen, penalty, PENALISES: tl.constexpr):
    raw = tl.load(logits + ids, mask=ids < bound, other=float("-inf")).to(tl.float32)
    return _eligible(raw, ids, bound, seen, penalty, PENALISES)


@triton.jit
def _observed(raw, before, largest, total, moment):
    """Lanes' sums of weights and of weights times (base 2) logit, moved to a new largest logit."""
    step = tl.maximum((before - largest) * LOG2E, -16000.0)
    shifted = (raw - largest[:, None]) * LOG2E
    shifted = tl.maximum(shifted, -288.0, propagate_nan=tl.PropagateNan.ALL)
    weights = tl.exp2(shifted)
    decay = tl.exp2(step)
    moment = decay * (moment + total * step) + tl.sum(weights * shifted, axis=1)
    return decay * total + tl.sum(weights, axis=1), moment


@triton.jit
def _raced(logits, before, largest, mass, reach, left, second, inverse, race, FAST: tl.constexpr):
    """Lanes' mass at the temperature, and the bound of their race, in base 2 above `largest`."""
    step = (before - largest) * LOG2E * inverse
    scaled = (logits - largest[:, None]) * LOG2E * inverse
    mass = mass * tl.exp2(step) + tl.sum(tl.exp2(scaled), axis=1)
    if race:
        column = tl.arange(0, logits.shape[1]).to(tl.uint32)
        word = _mix(_spread(left[:, None] ^ column[None, :]) ^ second)
        best = scaled - _fast_log2(word.to(tl.float32) + 0.5, FAST)
        reach = tl.maximum(reach + step, tl.max(best, axis=1))
    return mass, reach


@triton.jit
def scan(
    logits,
    stride,
    rows,
    counts,
    size,
    seen,
    words,
    lanes,
    sums,
    vocabulary,
    bound,
    tiles,
    SPLITS: tl.constexpr,
    WIDTH: tl.constexpr,
    PENALISES: tl.constexpr,
    FAST: tl.constexpr,
):
    """One pass over the logits of one split of a row."""
    row = tl.program_id(1).to(tl.int64)
    split = tl.program_id(0)
    TILE: tl.constexpr = LANES * WIDTH
    heat = tl.load(rows + row)
    inverse = 1.0 / tl.where(heat > 0, tl.maximum(heat, 1.1754943508222875e-38), 1.0)
    penalty = tl.load(rows + 3 * size + row)
    most = tl.load(counts + 2 * size + row)
    race = (heat > 0) & ((most <= 0) | (most > SPLITS * LANES // 2) | (most >= bound))
    first, second = _keys(counts, size, row)
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
    whole = 0 if PENALISES else bound // TILE
    middle = max(begin, min(end, whole))
    for tile in range(begin, middle):
        raw = tl.load(logits + tile * TILE + columns).to(tl.float32)
        left = (tile * TILE + starts).to(tl.uint32) ^ first
        left ^= left >> 16
        before = largest
        largest = tl.maximum(before, tl.max(raw, axis=1))
        total, moment = _observed(raw, before, largest, total, moment)
        mass, reach = _raced(
            raw, before, largest, mass, reach, left, second, inverse, race, FAST
        )
    top = largest
    for tile in range(middle, end):
        ids = tile * TILE + columns
        raw = tl.load(logits + ids, mask=ids < vocabulary, other=float("-inf")).to(tl.float32)
        left = (tile * TILE + starts).to(tl.uint32) ^ first
        left ^= left >> 16
        before = largest
        largest = tl.maximum(before, tl.max(raw, axis=1))
        total, moment = _observed(raw, before, largest, total, moment)
        drawn = _eligible(raw, ids, bound, seen, penalty, PENALISES)
        before = top
        top = tl.maximum(before, tl.max(drawn, axis=1))
        mass, reach = _raced(drawn, before, top, mass, reach, left, second, inverse, race, FAST)
    span = tl.num_programs(1) * SPLITS * LANES
    lanes += (row * SPLITS + split) * LANES + tl.arange(0, LANES)
    tl.store(lanes, top)
    tl.store(lanes + span, mass)
    tl.store(lanes + 2 * span, reach)
    peak = tl.max(largest)
    step = tl.maximum((largest - peak) * LOG2E, -16000.0)
    sums += (row * SPLITS + split) * 3
    tl.store(sums, peak)
    tl.store(sums + 1, tl.sum(total * tl.exp2(step)))
    tl.store(sums + 2, tl.sum(tl.exp2(step) * (moment + total * step)))


@triton.jit
def _observe(sums, SPLITS: tl.constexpr):
    """A row's entropy and log-sum-exp from the sums of its splits."""
    split = tl.arange(0, SPLITS) * 3
    peaks = tl.load(sums + split)
    peak = tl.max(peaks)
    step = tl.maximum((peaks - peak) * LOG2E, -16000.0)
    totals = tl.load(sums + split + 1)
    total = tl.sum(totals * tl.exp2(step))
    moment = tl.sum(tl.exp2(step) * (tl.load(sums + split + 2) + totals * step))
    return tl.log(total) - moment * LN2 / total, peak + tl.log(total)


@triton.jit
def _emit(row, token, logits, bound, total, tokens, logprobs, seen, PENALISES: tl.constexpr):
    token = tl.minimum(token, bound - 1)  # logits that are no numbers leave none to choose
    tl.store(tokens + row, token.to(tl.int64))
    tl.store(logprobs + row, tl.load(logits + token).to(tl.float32) - total)
    if PENALISES:
        word = tl.load(seen + (token >> 5))
        tl.store(seen + (token >> 5), word | (1 << (token & 31)))


@triton.jit
def _better(score, token, logit, best, winner, peak):
    wins = (score > best) | ((score == best) & (token < winner))
    return (
        tl.where(wins, score, best),
        tl.where(wins, token, winner),
        tl.where(wins, logit, peak),
    )


@triton.jit
def _first_of(scores, ids, logits):
    """The best score, its smallest id and that one's logit."""
    best = tl.max(scores, axis=0)
    token = tl.min(tl.where((scores == best) & (scores > float("-inf")), ids, NOTHING), axis=0)
    logit = tl.max(tl.where(ids == token, logits, float("-inf")), axis=0)
    return best, token, logit


@triton.jit
def _scores(logits, ids, top, heat, noisy, lowest, floor, least, first, second):
    """Scaled logits plus noise of ids that may be drawn; plain logits at temperature 0."""
    scaled = tl.div_rn(logits - top, heat)
    scores = _noise(ids, first, second) * noisy + scaled
    standing = (logits > floor) & (logits >= least) & (scaled >= lowest)
    return tl.where(standing, scores, float("-inf"))


@triton.jit
def _lane_ids(lane, tiles, WIDTH: tl.constexpr, SPAN: tl.constexpr):
    """The ids of a lane, or of several [lanes, 1]; `NOTHING` past its last tile."""
    place = tl.arange(0, SPAN)
    ids = (lane // LANES * tiles + place // WIDTH) * (LANES * WIDTH)
    ids += lane % LANES * WIDTH + place % WIDTH
    return tl.where(place < tiles * WIDTH, ids, NOTHING)


@triton.jit
def _seek(
    reach,
    looks,
    logits,
    bound,
    seen,
    penalty,
    top,
    heat,
    noisy,
    lowest,
    floor,
    first,
    second,
    tiles,
    WIDTH: tl.constexpr,
    SPAN: tl.constexpr,
    PENALISES: tl.constexpr,
):
    """The winner above `floor`: lanes are looked at in the order of what they could reach."""
    none = float("-inf")
    best = tl.full((), none, tl.float32)
    peak = tl.full((), none, tl.float32)
    winner = tl.full((), NOTHING, tl.int32)
    ahead = tl.max(reach, axis=0)
    while (ahead >= best) & (ahead > none) & (looks < LOOKS):
        lane = tl.argmax(reach, axis=0)
        ids = _lane_ids(lane, tiles, WIDTH, SPAN)
        found = _fetch(logits, ids, bound, seen, penalty, PENALISES)
        scores = _scores(found, ids, top, heat, noisy, lowest, floor, none, first, second)
        score, token, logit = _first_of(scores, ids, found)
        best, winner, peak = _better(score, token, logit, best, winner, peak)
        reach = tl.where(tl.arange(0, reach.shape[0]) == lane, none, reach)
        ahead = tl.max(reach, axis=0)
        looks += 1
    return winner, peak, looks


@triton.jit
def _ordered(number):
    """A float32's bits as an integer of the same order, and back."""
    return number ^ ((number >> 31) & 0x7FFFFFFF)


@triton.jit
def _level(peaks, top, most):
    """A logit that at least `most` lanes reach, and few more."""
    keys = _ordered(peaks.to(tl.int32, bitcast=True))
    low = tl.min(keys, axis=0)
    high = _ordered(top.to(tl.int32, bitcast=True))
    reached = tl.full((), peaks.shape[0], tl.int32)
    while (low < high) & (reached > most + 8):
        middle = (low | high) - ((low ^ high) >> 1)
        count = tl.sum((keys >= middle).to(tl.int32), axis=0)
        enough = count >= most
        reached = tl.where(enough, count, reached)
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
    return _ordered(low).to(tl.float32, bitcast=True)


@triton.jit
def _gather(
    peaks,
    level,
    listed,
    heap,
    heap_ids,
    logits,
    bound,
    seen,
    penalty,
    tiles,
    WIDTH: tl.constexpr,
    SPAN: tl.constexpr,
    PENALISES: tl.constexpr,
):
    """Write logits from `level` on and their ids to the heap; how many there are."""
    flags = (peaks >= level).to(tl.int32)
    order = tl.arange(0, peaks.shape[0])
    tl.store(listed + tl.cumsum(flags, 0) - 1, order, mask=flags != 0)
    count = tl.sum(flags, axis=0)
    filled = tl.full((), 0, tl.int32)
    tl.debug_barrier()
    for start in range(0, count, 4):
        places = start + tl.arange(0, 4)
        lane = tl.load(listed + places, mask=places < count, other=0)
        ids = _lane_ids(lane[:, None], tiles, WIDTH, SPAN)
        ids = tl.reshape(tl.where((places < count)[:, None], ids, NOTHING), (4 * SPAN,))
        found = _fetch(logits, ids, bound, seen, penalty, PENALISES)
        passes = ((found >= level) & (ids < bound)).to(tl.int32)
        slots = filled + tl.cumsum(passes, 0) - 1
        fits = (passes != 0) & (slots < HEAP)
        tl.store(heap + slots, found, mask=fits)
        tl.store(heap_ids + slots, ids, mask=fits)
        filled += tl.sum(passes, axis=0)
    tl.debug_barrier()
    return filled


@triton.jit
def _among(heap, heap_ids, filled, most, part, top, heat, noisy, lowest, first, second):
    """The winner among the heap's entries that pass top_k, top_p and min_p."""
    none = float("-inf")
    place = tl.arange(0, HEAP)
    logits = tl.load(heap + place, mask=place < filled, other=none)
    ids = tl.load(heap_ids + place, mask=place < filled, other=NOTHING)
    inverse = LOG2E / heat
    weights = tl.exp2((logits - top) * inverse)
    above = tl.zeros((HEAP,), tl.int32)
    mass = tl.zeros((HEAP,), tl.float32)
    for start in range(0, filled, 16):
        beside = start + tl.arange(0, 16)
        others = tl.load(heap + beside, mask=beside < filled, other=none)
        larger = others[None, :] > logits[:, None]
        above += tl.sum(larger.to(tl.int32), axis=1)
        heavy = tl.exp2((others - top) * inverse)
        mass += tl.sum(tl.where(larger, heavy[None, :], 0.0), axis=1)
    kept = (place < filled) & (above < most)
    goal = part * tl.sum(tl.where(kept, weights, 0.0), axis=0)
    goal = tl.where(part >= 1, float("inf"), goal)
    scores = _scores(logits, ids, top, heat, noisy, lowest, none, none, first, second)
    scores = tl.where(kept & (mass < goal), scores, none)
    best, token, logit = _first_of(scores, ids, logits)
    return token


@triton.jit
def _row_settings(rows, counts, size, row, bound):
    """Temperature, share of noise, top_k, top_p, log of min_p, and penalty of a row.

    Temperature 0 comes as temperature 1 without noise or filters.
    """
    heat = tl.load(rows + row)
    greedy = heat == 0
    part = tl.load(rows + size + row)
    lowest = tl.where(greedy, float("-inf"), tl.log(tl.load(rows + 2 * size + row)))
    penalty = tl.load(rows + 3 * size + row)
    most = tl.load(counts + 2 * size + row)
    most = tl.where(greedy | (most <= 0) | (most >= bound), 0, most).to(tl.int32)
    heat = tl.where(greedy, 1.0, tl.maximum(heat, 1.1754943508222875e-38))
    noisy = tl.where(greedy, 0.0, 1.0)
    return heat, noisy, most, tl.where(greedy, 1.0, part), lowest, penalty


@triton.jit
def settle(
    logits,
    stride,
    rows,
    counts,
    size,
    seen,
    words,
    lanes,
    sums,
    facts,
    states,
    listed,
    heap,
    heap_ids,
    tokens,
    entropies,
    logprobs,
    bound,
    tiles,
    SPLITS: tl.constexpr,
    WIDTH: tl.constexpr,
    SPAN: tl.constexpr,
    PENALISES: tl.constexpr,
):
    """Entropy of a row, and its token if the lanes tell it; else its candidates."""
    row = tl.program_id(0).to(tl.int64)
    heat, noisy, most, part, lowest, penalty = _row_settings(rows, counts, size, row, bound)
    first, second = _keys(counts, size, row)
    N: tl.constexpr = SPLITS * LANES
    logits += row * stride
    seen += row * words
    facts += row * FACTS
    states += row * FACTS
    heap += row * HEAP
    heap_ids += row * HEAP
    entropy, total = _observe(sums + row * SPLITS * 3, SPLITS)
    tl.store(entropies + row, entropy)
    place = lanes + row * N + tl.arange(0, N)
    peaks = tl.load(place)
    top = tl.max(peaks, axis=0)
    kept = tl.full((), 0, tl.int32)
    mode = tl.full((), 0, tl.int32)
    token = tl.full((), -1, tl.int32)
    floor = tl.full((), float("-inf"), tl.float32)
    goal = tl.full((), 0.0, tl.float32)
    if most > N // 2:
        mode += 2
    elif most > 0:
        level = _level(peaks, top, most)
        filled = _gather(
            peaks,
            level,
            listed + row * N,
            heap,
            heap_ids,
            logits,
            bound,
            seen,
            penalty,
            tiles,
            WIDTH,
            SPAN,
            PENALISES,
        )
        if filled > HEAP:
            mode += 2
        else:
            token = _among(
                heap, heap_ids, filled, most, part, top, heat, noisy, lowest, first, second
            )
    else:
        span = tl.num_programs(0) * N
        scaled = (peaks - top) * (LOG2E / heat)
        weights = tl.exp2(scaled)
        mass = tl.load(place + span) * weights
        goal = part * tl.sum(mass, axis=0)
        reach = (tl.load(place + 2 * span) + scaled + 32.0) * LN2  # the words are of 32 bits
        slack = 1e-3 + 1e-5 * tl.abs(reach)
        reach = tl.where(reach > float("-inf"), reach + slack, reach)
        reach = tl.where(noisy > 0, reach, peaks - top)
        looks = tl.full((), 0, tl.int32)
        searching = tl.full((), 1, tl.int32)
        while searching != 0:
            winner, logit, looks = _seek(
                reach,
                looks,
                logits,
                bound,
                seen,
                penalty,
                top,
                heat,
                noisy,
                lowest,
                floor,
                first,
                second,
                tiles,
                WIDTH,
                SPAN,
                PENALISES,
            )
            over = peaks > logit
            most_above = tl.sum(tl.where(over, mass, 0.0), axis=0) * 1.00001
            least_above = tl.sum(tl.where(over, weights, 0.0), axis=0) * 0.99999
            stands = (part >= 1) | (most_above < goal)
            if looks >= LOOKS:
                mode += 1
                searching *= 0
            elif stands:
                token = winner
                searching *= 0
            else:
                if (least_above < goal) | (least_above != least_above):
                    tl.store(facts + 4 + kept, logit)
                    tl.store(states + 3 + kept, winner)
                    kept += 1
                floor = logit
                if kept == CANDIDATES:
                    mode += 1
                    searching *= 0
    tl.store(facts, top)
    tl.store(facts + 1, total)
    tl.store(facts + 2, goal)
    tl.store(facts + 3, floor)
    tl.store(states, kept)
    tl.store(states + 1, token)
    tl.store(states + 2, mode)
    if (kept == 0) & (mode == 0):
        _emit(row, token, logits, bound, total, tokens, logprobs, seen, PENALISES)


@triton.jit
def weigh(
    logits,
    stride,
    rows,
    counts,
    size,
    seen,
    words,
    sums,
    facts,
    states,
    bound,
    chunks,
    SPLITS: tl.constexpr,
    PENALISES: tl.constexpr,
):
    """The mass above each of a row's candidates, in one split of the row."""
    # Last rows first: `scan` read them last, so that they may still be in the cache.
    row = (tl.num_programs(1) - 1 - tl.program_id(1)).to(tl.int64)
    split = tl.program_id(0)
    states += row * FACTS
    if tl.load(states) > 0:
        heat, noisy, most, part, lowest, penalty = _row_settings(rows, counts, size, row, bound)
        logits += row * stride
        seen += row * words
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
            ids = chunk * CHUNK + tl.arange(0, CHUNK)
            found = _fetch(logits, ids, bound, seen, penalty, PENALISES)
            weights = tl.exp2((found - top) * LOG2E * inverse)
            above_one += tl.where(found > one, weights, 0.0)
            above_two += tl.where(found > two, weights, 0.0)
            above_three += tl.where(found > three, weights, 0.0)
        sums += (row * SPLITS + split) * 3
        tl.store(sums, tl.sum(above_one, axis=0))
        tl.store(sums + 1, tl.sum(above_two, axis=0))
        tl.store(sums + 2, tl.sum(above_three, axis=0))


@triton.jit
def _count(logits, bound, seen, penalty, level, PENALISES: tl.constexpr):
    """How many logits of a row are at least `level`."""
    count = tl.zeros((CHUNK,), tl.int32)
    for start in range(0, bound, CHUNK):
        ids = start + tl.arange(0, CHUNK)
        found = _fetch(logits, ids, bound, seen, penalty, PENALISES)
        count += ((found >= level) & (ids < bound)).to(tl.int32)
    return tl.sum(count, axis=0)


@triton.jit
def _mass(logits, bound, seen, penalty, top, heat, above, least, PENALISES: tl.constexpr):
    """The mass of logits above `above` that are at least `least`."""
    mass = tl.zeros((CHUNK,), tl.float32)
    for start in range(0, bound, CHUNK):
        ids = start + tl.arange(0, CHUNK)
        found = _fetch(logits, ids, bound, seen, penalty, PENALISES)
        weights = tl.exp2((found - top) * LOG2E / heat)
        mass += tl.where((found > above) & (found >= least), weights, 0.0)
    return tl.sum(mass, axis=0)


@triton.jit
def _smallest(logits, bound, seen, penalty, top, most, PENALISES: tl.constexpr):
    """The `most`-th largest logit of a row, by halving the range of float32's bits."""
    low = _ordered(tl.full((), float("-inf"), tl.float32).to(tl.int32, bitcast=True))
    high = _ordered(top.to(tl.int32, bitcast=True))
    while low < high:
        middle = (low | high) - ((low ^ high) >> 1)
        level = _ordered(middle).to(tl.float32, bitcast=True)
        enough = _count(logits, bound, seen, penalty, level, PENALISES) >= most
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
    return _ordered(low).to(tl.float32, bitcast=True)


@triton.jit
def _sweep(
    logits,
    bound,
    seen,
    penalty,
    top,
    heat,
    noisy,
    lowest,
    floor,
    least,
    first,
    second,
    PENALISES: tl.constexpr,
):
    """The winner above `floor`, in one exact pass over the row."""
    best = tl.full((CHUNK,), float("-inf"), tl.float32)
    peak = tl.full((CHUNK,), float("-inf"), tl.float32)
    winner = tl.full((CHUNK,), NOTHING, tl.int32)
    for start in range(0, bound, CHUNK):
        ids = start + tl.arange(0, CHUNK)
        found = _fetch(logits, ids, bound, seen, penalty, PENALISES)
        scores = _scores(found, ids, top, heat, noisy, lowest, floor, least, first, second)
        best, winner, peak = _better(scores, ids, found, best, winner, peak)
    best, token, logit = _first_of(best, winner, peak)
    return token, logit


@triton.jit
def _search(
    logits,
    bound,
    seen,
    penalty,
    top,
    heat,
    noisy,
    most,
    part,
    lowest,
    floor,
    goal,
    first,
    second,
    PENALISES: tl.constexpr,
):
    """The winner by full passes over the row."""
    least = tl.full((), float("-inf"), tl.float32)
    if most > 0:
        least = _smallest(logits, bound, seen, penalty, top, most, PENALISES)
        whole = _mass(
            logits, bound, seen, penalty, top, heat, float("-inf"), least, PENALISES
        )
        goal = part * whole
    token = tl.full((), -1, tl.int32)
    while token < 0:
        winner, logit = _sweep(
            logits,
            bound,
            seen,
            penalty,
            top,
            heat,
            noisy,
            lowest,
            floor,
            least,
            first,
            second,
            PENALISES,
        )
        floor = logit
        if part >= 1:
            token = winner
        else:
            above = _mass(logits, bound, seen, penalty, top, heat, logit, least, PENALISES)
            fails = above >= goal
            token = tl.where(fails, -1, winner)
    return token


@triton.jit
def conclude(
    logits,
    stride,
    rows,
    counts,
    size,
    seen,
    words,
    sums,
    facts,
    states,
    tokens,
    logprobs,
    bound,
    SPLITS: tl.constexpr,
    PENALISES: tl.constexpr,
):
    """The token of a row that `settle` left open."""
    row = tl.program_id(0).to(tl.int64)
    states += row * FACTS
    kept = tl.load(states)
    mode = tl.load(states + 2)
    if (kept > 0) | (mode > 0):
        heat, noisy, most, part, lowest, penalty = _row_settings(rows, counts, size, row, bound)
        facts += row * FACTS
        logits += row * stride
        seen += row * words
        token = tl.load(states + 1)
        top = tl.load(facts)
        total = tl.load(facts + 1)
        goal = tl.load(facts + 2)
        chosen = tl.full((), -1, tl.int32)
        for candidate in range(0, kept):
            parts = sums + row * SPLITS * 3 + tl.arange(0, SPLITS) * 3 + candidate
            fails = tl.sum(tl.load(parts), axis=0) >= goal
            this = tl.load(states + 3 + candidate)
            chosen = tl.where((chosen < 0) & (fails == 0), this, chosen)
        if chosen < 0:
            if mode > 0:
                first, second = _keys(counts, size, row)
                chosen = _search(
                    logits,
                    bound,
                    seen,
                    penalty,
                    top,
                    heat,
                    noisy,
                    most,
                    part,
                    lowest,
                    tl.load(facts + 3),
                    goal,
                    first,
                    second,
                    PENALISES,
                )
            else:
                chosen = token
        _emit(row, chosen, logits, bound, total, tokens, logprobs, seen, PENALISES)
