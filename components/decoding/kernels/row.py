"""What the kernels share: the noise, the logits to draw from, and a row's parameters.

`numbers` [4, size] holds temperature, top_p, min_p and repetition penalty of all rows, `counts`
[3, size] seed, index and top_k. A row's `source` is (start of its logits, first id that
may not be drawn, bits of seen ids, repetition penalty), its `scoring` (largest logit, temperature,
scale of the noise, log of min_p, two words of the noise).
"""

import triton
import triton.language as tl


def constant(value):
    """A number that kernels can use."""
    # Triton's interpreter, which tests run on the CPU, does no arithmetic on its own constants.
    return value if triton.knobs.runtime.interpret else tl.constexpr(value)


LANES = constant(256)  # per split
ROW_WIDTH = constant(8)  # floats, and integers, that kernels hand on for each row
CHUNK = constant(2048)  # ids that a full pass reads at a time
LOG2E = constant(1.4426950408889634)
LN2 = constant(0.6931471805599453)
TINY = constant(1.1754943508222875e-38)  # the smallest normal float32
NO_ID = constant(2147483647)  # larger than any id


@triton.jit
def mix_second_half(word):
    """`mix` without its first shift."""
    word *= 0x7FEB352D
    word ^= word >> 15
    word *= 0x846CA68B
    return word ^ (word >> 16)


@triton.jit
def mix(word):
    """The mixer of 32-bit words that `noise.py` describes."""
    return mix_second_half(word ^ (word >> 16))


@triton.jit
def noise_words(counts, size, row):
    """The two words from which a row's noise is computed."""
    seed = tl.load(counts + row)
    index = tl.load(counts + size + row)
    first = mix(seed.to(tl.uint32) ^ mix(index.to(tl.uint32)))
    second = mix((seed >> 32).to(tl.uint32) ^ mix(first + 0x9E3779B9))
    return first, second


@triton.jit
def _noise(ids, first, second):
    """The field of `noise.py`, rounded as it rounds."""
    word = mix(mix(ids.to(tl.uint32) ^ first) ^ second)
    uniform = ((word & 255).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    uniform += (word >> 8).to(tl.float32) * 5.9604644775390625e-08
    uniform = tl.minimum(uniform, 0.99999994039535522)
    series = uniform * uniform * 0.5 + uniform
    return -tl.log(tl.where(uniform < 0.0009765625, series, -tl.log(1.0 - uniform)))


@triton.jit
def eligible(raw, ids, bound, seen, penalty, PENALISES: tl.constexpr):
    """Logits to draw from: after the repetition penalty; minus infinity from id `bound` on."""
    if PENALISES:
        words = tl.load(seen + (ids >> 5), mask=ids < bound, other=0)
        lowered = tl.where(raw < 0, raw * penalty, tl.div_rn(raw, penalty))
        raw = tl.where((words >> (ids & 31)) & 1 != 0, lowered, raw)
    return tl.where(ids < bound, raw, float("-inf"))


@triton.jit
def fetch(source, ids, PENALISES: tl.constexpr):
    """The logits to draw from, for some ids of a row."""
    logits, bound, seen, penalty = source
    raw = tl.load(logits + ids, mask=ids < bound, other=float("-inf")).to(tl.float32)
    return eligible(raw, ids, bound, seen, penalty, PENALISES)


@triton.jit
def noisy_scores(logits, ids, scoring, floor, min_logit):
    """Scaled logits plus noise.

    Minus infinity for logits not above `floor`, below `min_logit`, or that min_p removes.
    """
    top, temperature, noise_scale, log_min_p, first, second = scoring
    scaled = tl.div_rn(logits - top, temperature)
    passes = (logits > floor) & (logits >= min_logit) & (scaled >= log_min_p)
    return tl.where(passes, _noise(ids, first, second) * noise_scale + scaled, float("-inf"))


@triton.jit
def better(score, token, logit, best, winner, peak):
    """The one of two (score, id, logit) with the larger score; of equals, the smaller id."""
    wins = (score > best) | ((score == best) & (token < winner))
    score = tl.where(wins, score, best)
    return score, tl.where(wins, token, winner), tl.where(wins, logit, peak)


@triton.jit
def best_of(scored, ids, logits):
    """The best score, its smallest id and its logit; `NO_ID` if no id has a score."""
    ids = tl.where(scored > float("-inf"), ids, NO_ID)
    return tl.reduce((scored, ids, logits), 0, better)


@triton.jit
def row_sampling(numbers, counts, size, row, bound):
    """Temperature, scale of the noise, top_k, top_p, log of min_p, and penalty of a row.

    Temperature 0 is returned as temperature 1 without noise or filters.
    """
    temperature = tl.load(numbers + row)
    greedy = temperature == 0
    top_p = tl.where(greedy, 1.0, tl.load(numbers + size + row))
    log_min_p = tl.where(greedy, float("-inf"), tl.log(tl.load(numbers + 2 * size + row)))
    penalty = tl.load(numbers + 3 * size + row)
    top_k = tl.load(counts + 2 * size + row)
    top_k = tl.where(greedy | (top_k <= 0) | (top_k >= bound), 0, top_k).to(tl.int32)
    temperature = tl.where(greedy, 1.0, tl.maximum(temperature, TINY))
    return temperature, tl.where(greedy, 0.0, 1.0), top_k, top_p, log_min_p, penalty


@triton.jit
def emit(row, token, total, source, tokens, logprobs, PENALISES: tl.constexpr):
    """Write a row's id and its raw logprob, and mark the id as seen."""
    logits, bound, seen, penalty = source
    token = tl.minimum(token, bound - 1)  # if all logits are NaN there is no id
    tl.store(tokens + row, token.to(tl.int64))
    tl.store(logprobs + row, tl.load(logits + token).to(tl.float32) - total)
    if PENALISES:
        word = tl.load(seen + (token >> 5))
        tl.store(seen + (token >> 5), word | (1 << (token & 31)))
