"""Attention of a decode step to keys and values that are cached in 8 bits.

Read as bytes, they would keep the processor busy for longer than the memory: the matrix
instructions want pairs of 16-bit values that lie along the tokens, and single bytes are what can be
collected so. Here a token's bytes are read four at a time, as words; the four values of a word go
to four products, of every fourth channel each.
"""

import triton
import triton.language as tl


@triton.jit
def attend(
    query, key, value, keys, values, table, positions, order, out, split_sums, split_stats,
    query_row, query_head, key_row, key_head, value_row, value_head, width, heads, scale,
    PAGE: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, KEY: tl.constexpr,
    KEYS: tl.constexpr, VALUE: tl.constexpr, VALUES: tl.constexpr, BLOCK: tl.constexpr,
    SPLITS: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """As `step.attend`; `keys` and `values` are words of four values each, int32.

    PAGE: tokens of a page. LARGEST: the largest value that is cached.
    """
    head, row, split = tl.program_id(0), tl.load(order + tl.program_id(1)), tl.program_id(2)
    cached = tl.load(positions + row).to(tl.int32)  # tokens before the new one
    share = tl.cdiv(tl.cdiv(cached, SPLITS), BLOCK) * BLOCK
    start = share * split
    end = tl.minimum(cached, start + share)
    own = tl.arange(0, ROWS)
    key_word, value_word = tl.arange(0, KEYS // 4), tl.arange(0, VALUES // 4)
    place = query + row * query_row + (head * GROUP + own[:, None]) * query_head
    inside = (own[:, None] < GROUP) & (key_word[None, :] < KEY // 4)
    q0, q1, q2, q3 = _load_fourths(place + 4 * key_word[None, :], inside)
    largest = tl.full([ROWS], -1e30, tl.float32)
    mass = tl.zeros([ROWS], tl.float32)
    s0 = tl.zeros([ROWS, VALUES // 4], tl.float32)
    s1, s2, s3 = s0, s0, s0
    pages = table + row * width
    whole = end - tl.maximum(end - start, 0) % BLOCK
    for first in range(start, whole, BLOCK):
        largest, mass, s0, s1, s2, s3 = _attend_block(
            q0, q1, q2, q3, keys, values, pages, first, end, heads, head, scale,
            largest, mass, s0, s1, s2, s3, PAGE, KEY, KEYS, VALUE, VALUES, BLOCK, False,
        )  # fmt: skip
    for first in range(whole, end, BLOCK):
        largest, mass, s0, s1, s2, s3 = _attend_block(
            q0, q1, q2, q3, keys, values, pages, first, end, heads, head, scale,
            largest, mass, s0, s1, s2, s3, PAGE, KEY, KEYS, VALUE, VALUES, BLOCK, True,
        )  # fmt: skip
    if split == SPLITS - 1:  # the new token
        spot = (tl.load(pages + cached // PAGE).to(tl.int64) * heads + head) * PAGE + cached % PAGE
        source = key + row * key_row + head * key_head + 4 * key_word
        k0, k1, k2, k3 = _round_fourths(source, key_word < KEY // 4, LARGEST)
        target = keys.to(tl.pointer_type(tl.float8e4nv)) + spot * KEY + 4 * key_word
        _store_fourths(target, k0, k1, k2, k3, key_word < KEY // 4)
        scores = _dot(q0, k0) + _dot(q1, k1) + _dot(q2, k2) + _dot(q3, k3)
        larger = tl.maximum(largest, scores * scale)
        weights, fade = tl.exp2(scores * scale - larger), tl.exp2(largest - larger)
        mass = mass * fade + weights
        largest = larger
        source = value + row * value_row + head * value_head + 4 * value_word
        v0, v1, v2, v3 = _round_fourths(source, value_word < VALUE // 4, LARGEST)
        target = values.to(tl.pointer_type(tl.float8e4nv)) + spot * VALUE + 4 * value_word
        _store_fourths(target, v0, v1, v2, v3, value_word < VALUE // 4)
        s0 = s0 * fade[:, None] + weights[:, None] * v0.to(tl.float32)[None, :]
        s1 = s1 * fade[:, None] + weights[:, None] * v1.to(tl.float32)[None, :]
        s2 = s2 * fade[:, None] + weights[:, None] * v2.to(tl.float32)[None, :]
        s3 = s3 * fade[:, None] + weights[:, None] * v3.to(tl.float32)[None, :]
    index = (row * heads + head) * GROUP + own
    wanted = (own[:, None] < GROUP) & (value_word[None, :] < VALUE // 4)
    if SPLITS == 1:
        target = out + index[:, None] * VALUE + 4 * value_word[None, :]
        share_of = 1 / mass[:, None]
        _store_fourths(target, s0 * share_of, s1 * share_of, s2 * share_of, s3 * share_of, wanted)
    else:
        spots = index * SPLITS + split
        target = split_sums + spots[:, None] * VALUE + 4 * value_word[None, :]
        _store_fourths(target, s0, s1, s2, s3, wanted)
        tl.store(split_stats + spots * 2, largest, mask=own < GROUP)
        tl.store(split_stats + spots * 2 + 1, mass, mask=own < GROUP)


@triton.jit
def _attend_block(
    q0, q1, q2, q3, keys, values, pages, first, end, heads, head, scale,
    largest, mass, s0, s1, s2, s3,
    PAGE: tl.constexpr, KEY: tl.constexpr, KEYS: tl.constexpr, VALUE: tl.constexpr,
    VALUES: tl.constexpr, BLOCK: tl.constexpr, PARTLY: tl.constexpr,
):  # fmt: skip
    """The running softmax after the block of tokens from `first` on; PARTLY: some are past end."""
    token = tl.arange(0, BLOCK)
    key_word, value_word = tl.arange(0, KEYS // 4), tl.arange(0, VALUES // 4)
    spot = (tl.load(pages + first // PAGE).to(tl.int64) * heads + head) * PAGE + first % PAGE
    key_place = keys + spot * (KEY // 4) + token[None, :] * (KEY // 4) + key_word[:, None]
    value_place = values + spot * (VALUE // 4) + token[:, None] * (VALUE // 4) + value_word[None, :]
    valid = token < (end - first if PARTLY else BLOCK)
    if PARTLY or KEY != KEYS:
        k = tl.load(key_place, mask=valid[None, :] & (key_word[:, None] < KEY // 4), other=0)
    else:
        k = tl.load(key_place)
    if PARTLY or VALUE != VALUES:
        v = tl.load(value_place, mask=valid[:, None] & (value_word[None, :] < VALUE // 4), other=0)
    else:
        v = tl.load(value_place)
    k0, k1, k2, k3 = _unpack(k)
    scores = tl.dot(q3, k3, tl.dot(q2, k2, tl.dot(q1, k1, tl.dot(q0, k0)))) * scale
    if PARTLY:
        scores = tl.where(valid[None, :], scores, -1e30)
    larger = tl.maximum(largest, tl.max(scores, 1))
    weights = tl.exp2(scores - larger[:, None])
    fade = tl.exp2(largest - larger)
    mass = mass * fade + tl.sum(weights, 1)
    weights = weights.to(tl.float16)
    v0, v1, v2, v3 = _unpack(v)
    s0 = tl.dot(weights, v0, s0 * fade[:, None])
    s1 = tl.dot(weights, v1, s1 * fade[:, None])
    s2 = tl.dot(weights, v2, s2 * fade[:, None])
    s3 = tl.dot(weights, v3, s3 * fade[:, None])
    return larger, mass, s0, s1, s2, s3


@triton.jit
def _dot(queries, key):
    return tl.sum(queries.to(tl.float32) * key.to(tl.float32)[None, :], 1)


@triton.jit
def _unpack(words):
    """The four values of every word, which fit 16 bits exactly."""
    low, high = tl.inline_asm_elementwise(
        """{
        .reg .b16 low, high;
        mov.b32 {low, high}, $2;
        cvt.rn.f16x2.e4m3x2 $0, low;
        cvt.rn.f16x2.e4m3x2 $1, high;
        }""",
        "=r,=r,r", [words], dtype=(tl.int32, tl.int32), is_pure=True, pack=1,
    )  # fmt: skip
    first = low.to(tl.int16).to(tl.float16, bitcast=True)
    second = (low >> 16).to(tl.int16).to(tl.float16, bitcast=True)
    third = high.to(tl.int16).to(tl.float16, bitcast=True)
    return first, second, third, (high >> 16).to(tl.int16).to(tl.float16, bitcast=True)


@triton.jit
def _load_fourths(place, inside):
    """Every fourth channel, from the first four on."""
    first = tl.load(place, mask=inside, other=0.0).to(tl.float16)
    second = tl.load(place + 1, mask=inside, other=0.0).to(tl.float16)
    third = tl.load(place + 2, mask=inside, other=0.0).to(tl.float16)
    return first, second, third, tl.load(place + 3, mask=inside, other=0.0).to(tl.float16)


@triton.jit
def _round_fourths(place, inside, LARGEST: tl.constexpr):
    """As `_load_fourths`, rounded to 8 bits; beyond LARGEST is LARGEST, not NaN."""
    first = _round(tl.load(place, mask=inside, other=0.0), LARGEST)
    second = _round(tl.load(place + 1, mask=inside, other=0.0), LARGEST)
    third = _round(tl.load(place + 2, mask=inside, other=0.0), LARGEST)
    return first, second, third, _round(tl.load(place + 3, mask=inside, other=0.0), LARGEST)


@triton.jit
def _round(values, LARGEST: tl.constexpr):
    values = tl.minimum(tl.maximum(values.to(tl.float32), -LARGEST), LARGEST)
    return values.to(tl.float8e4nv)


@triton.jit
def _store_fourths(place, first, second, third, fourth, inside):
    tl.store(place, first.to(place.dtype.element_ty), mask=inside)
    tl.store(place + 1, second.to(place.dtype.element_ty), mask=inside)
    tl.store(place + 2, third.to(place.dtype.element_ty), mask=inside)
    tl.store(place + 3, fourth.to(place.dtype.element_ty), mask=inside)
