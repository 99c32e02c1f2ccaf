"""Triton kernels of a decode step: cache a token per row, attend to its pages, advance."""

import triton
import triton.language as tl


@triton.jit
def attend(
    query, key, value, keys, values, table, positions, order, out, split_sums, split_stats,
    query_row, query_head, key_row, key_head, value_row, value_head, width, page_size, heads, scale,
    GROUP: tl.constexpr, ROWS: tl.constexpr, KEY: tl.constexpr,
    KEYS: tl.constexpr, VALUE: tl.constexpr, VALUES: tl.constexpr, BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
):  # fmt: skip
    """Attention of the queries that share a key head to one split of their row's tokens.

    The program of a row's last split starts with the new token and caches it.
    """
    head, row, split = tl.program_id(0), tl.load(order + tl.program_id(1)), tl.program_id(2)
    cached = tl.load(positions + row).to(tl.int32)  # tokens before the new one
    share = tl.cdiv(tl.cdiv(cached, SPLITS), BLOCK) * BLOCK
    start = share * split
    end = tl.minimum(cached, start + share)
    own, key_lane, value_lane = tl.arange(0, ROWS), tl.arange(0, KEYS), tl.arange(0, VALUES)
    place = query + row * query_row + (head * GROUP + own[:, None]) * query_head
    inside = (own[:, None] < GROUP) & (key_lane[None, :] < KEY)
    q = tl.load(place + key_lane[None, :], mask=inside, other=0.0)
    largest = tl.full([ROWS], -1e30, tl.float32)
    mass = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, VALUES], tl.float32)
    if split == SPLITS - 1:
        source = key + row * key_row + head * key_head + key_lane
        new_key = tl.load(source, mask=key_lane < KEY, other=0.0)
        largest = tl.sum(q.to(tl.float32) * new_key.to(tl.float32)[None, :], 1) * scale
        mass += 1.0
        page = tl.load(table + row * width + cached // page_size).to(tl.int64)
        spot = (page * heads + head) * page_size + cached % page_size
        tl.store(keys + spot * KEY + key_lane, new_key, mask=key_lane < KEY)
        source = value + row * value_row + head * value_head + value_lane
        new_value = tl.load(source, mask=value_lane < VALUE, other=0.0)
        acc += new_value.to(tl.float32)[None, :]
        tl.store(values + spot * VALUE + value_lane, new_value, mask=value_lane < VALUE)
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
        larger = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp2(scores - larger[:, None])
        fade = tl.exp2(largest - larger)
        v = tl.load(
            values + base[:, None] * VALUE + value_lane[None, :],
            mask=valid[:, None] & (value_lane[None, :] < VALUE),
            other=0.0,
        )
        acc = acc * fade[:, None] + tl.dot(weights.to(v.dtype), v)
        mass = mass * fade + tl.sum(weights, 1)
        largest = larger
    index = (row * heads + head) * GROUP + own
    wanted = (own[:, None] < GROUP) & (value_lane[None, :] < VALUE)
    if SPLITS == 1:
        done = acc / mass[:, None]
        target = out + index[:, None] * VALUE + value_lane[None, :]
        tl.store(target, done.to(out.dtype.element_ty), mask=wanted)
    else:
        spot = index * SPLITS + split
        tl.store(split_sums + spot[:, None] * VALUE + value_lane[None, :], acc, mask=wanted)
        tl.store(split_stats + spot * 2, largest, mask=own < GROUP)
        tl.store(split_stats + spot * 2 + 1, mass, mask=own < GROUP)


@triton.jit
def merge(
    split_sums, split_stats, out, VALUE: tl.constexpr, VALUES: tl.constexpr, SPLITS: tl.constexpr
):
    """Combine the splits of one row and query head."""
    index = tl.program_id(0)
    split, lane = tl.arange(0, SPLITS), tl.arange(0, VALUES)
    largest = tl.load(split_stats + (index * SPLITS + split) * 2)
    mass = tl.load(split_stats + (index * SPLITS + split) * 2 + 1)
    fade = tl.exp2(largest - tl.max(largest, 0))
    place = split_sums + (index * SPLITS + split[:, None]) * VALUE + lane[None, :]
    acc = tl.load(place, mask=lane[None, :] < VALUE, other=0.0)
    done = tl.sum(acc * fade[:, None], 0) / tl.sum(mass * fade, 0)
    tl.store(out + index * VALUE + lane, done.to(out.dtype.element_ty), mask=lane < VALUE)


@triton.jit
def advance(
    tokens, entropies, logprobs, positions, indices, counter, results, rows, width, last,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Append a step's results [3, width] to those of the last step, and advance every row."""
    row = tl.arange(0, BLOCK)
    own = row < rows
    step = tl.load(counter)
    target = results + step * 3 * width + row
    tl.store(target, tl.load(tokens + row, mask=own).to(tl.int32), mask=own)
    entropy = tl.load(entropies + row, mask=own)
    tl.store(target + width, entropy.to(tl.int32, bitcast=True), mask=own)
    logprob = tl.load(logprobs + row, mask=own)
    tl.store(target + 2 * width, logprob.to(tl.int32, bitcast=True), mask=own)
    position = tl.load(positions + row, mask=own)
    tl.store(positions + row, tl.minimum(position + 1, last), mask=own)
    tl.store(indices + row, tl.load(indices + row, mask=own) + 1, mask=own)
    tl.debug_barrier()
    tl.store(counter, step + 1)
