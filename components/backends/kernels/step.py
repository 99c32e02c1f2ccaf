"""Triton kernels of a decoding step: cache one token per row, attend to its pages, move on."""

import triton
import triton.language as tl


@triton.jit
def store(
    key, value, keys, values, table, positions, key_row, key_head, value_row, value_head,
    width, page_size, heads, KEY: tl.constexpr, VALUE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write one token's keys and values of one row and head into its page."""
    row, head = tl.program_id(0), tl.program_id(1)
    position = tl.load(positions + row)
    page = tl.load(table + row * width + position // page_size).to(tl.int64)
    place = (page * heads + head) * page_size + position % page_size
    lane = tl.arange(0, BLOCK)
    got = tl.load(key + row * key_row + head * key_head + lane, mask=lane < KEY)
    tl.store(keys + place * KEY + lane, got, mask=lane < KEY)
    got = tl.load(value + row * value_row + head * value_head + lane, mask=lane < VALUE)
    tl.store(values + place * VALUE + lane, got, mask=lane < VALUE)


@triton.jit
def attend(
    query, keys, values, table, positions, out, parts, facts, query_row, query_head,
    width, page_size, heads, scale, GROUP: tl.constexpr, ROWS: tl.constexpr, KEY: tl.constexpr,
    KEYS: tl.constexpr, VALUE: tl.constexpr, VALUES: tl.constexpr, BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
):  # fmt: skip
    """Attention of the queries that share a key head to one split of their row's tokens."""
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(positions + row) + 1
    share = tl.cdiv(tl.cdiv(length, SPLITS), BLOCK) * BLOCK
    start = share * split
    end = tl.minimum(length, start + share)
    mine, key_lane, value_lane = tl.arange(0, ROWS), tl.arange(0, KEYS), tl.arange(0, VALUES)
    place = query + row * query_row + (head * GROUP + mine[:, None]) * query_head
    inside = (mine[:, None] < GROUP) & (key_lane[None, :] < KEY)
    q = tl.load(place + key_lane[None, :], mask=inside, other=0.0)
    most = tl.full([ROWS], -1e30, tl.float32)
    mass = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, VALUES], tl.float32)
    for first in range(start, end, BLOCK):
        token = first + tl.arange(0, BLOCK)
        page = tl.load(table + row * width + first // page_size).to(tl.int64)
        base = (page * heads + head) * page_size + token % page_size
        valid = token < end
        k = tl.load(
            keys + base[None, :] * KEY + key_lane[:, None],
            mask=valid[None, :] & (key_lane[:, None] < KEY),
            other=0.0,
        )
        scores = tl.dot(q, k) * scale
        scores = tl.where(valid[None, :], scores, -1e30)
        larger = tl.maximum(most, tl.max(scores, 1))
        weights = tl.exp2(scores - larger[:, None])
        fade = tl.exp2(most - larger)
        v = tl.load(
            values + base[:, None] * VALUE + value_lane[None, :],
            mask=valid[:, None] & (value_lane[None, :] < VALUE),
            other=0.0,
        )
        acc = acc * fade[:, None] + tl.dot(weights.to(v.dtype), v)
        mass = mass * fade + tl.sum(weights, 1)
        most = larger
    index = (row * heads + head) * GROUP + mine
    wanted = (mine[:, None] < GROUP) & (value_lane[None, :] < VALUE)
    if SPLITS == 1:
        done = acc / mass[:, None]
        target = out + index[:, None] * VALUE + value_lane[None, :]
        tl.store(target, done.to(out.dtype.element_ty), mask=wanted)
    else:
        spot = index * SPLITS + split
        tl.store(parts + spot[:, None] * VALUE + value_lane[None, :], acc, mask=wanted)
        tl.store(facts + spot * 2, most, mask=mine < GROUP)
        tl.store(facts + spot * 2 + 1, mass, mask=mine < GROUP)


@triton.jit
def merge(parts, facts, out, VALUE: tl.constexpr, VALUES: tl.constexpr, SPLITS: tl.constexpr):
    """Put the splits of one row and query head together."""
    index = tl.program_id(0)
    split, lane = tl.arange(0, SPLITS), tl.arange(0, VALUES)
    most = tl.load(facts + (index * SPLITS + split) * 2)
    mass = tl.load(facts + (index * SPLITS + split) * 2 + 1)
    fade = tl.exp2(most - tl.max(most, 0))
    place = parts + (index * SPLITS + split[:, None]) * VALUE + lane[None, :]
    acc = tl.load(place, mask=lane[None, :] < VALUE, other=0.0)
    done = tl.sum(acc * fade[:, None], 0) / tl.sum(mass * fade, 0)
    tl.store(out + index * VALUE + lane, done.to(out.dtype.element_ty), mask=lane < VALUE)


@triton.jit
def advance(
    tokens, entropies, logprobs, positions, indices, counter, results, rows, width, last,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Note a step's results [3, width] behind those of the last and move every row on by one."""
    row = tl.arange(0, BLOCK)
    mine = row < rows
    step = tl.load(counter)
    target = results + step * 3 * width + row
    tl.store(target, tl.load(tokens + row, mask=mine).to(tl.int32), mask=mine)
    entropy = tl.load(entropies + row, mask=mine)
    tl.store(target + width, entropy.to(tl.int32, bitcast=True), mask=mine)
    logprob = tl.load(logprobs + row, mask=mine)
    tl.store(target + 2 * width, logprob.to(tl.int32, bitcast=True), mask=mine)
    position = tl.load(positions + row, mask=mine)
    tl.store(positions + row, tl.minimum(position + 1, last), mask=mine)
    tl.store(indices + row, tl.load(indices + row, mask=mine) + 1, mask=mine)
    tl.debug_barrier()
    tl.store(counter, step + 1)
