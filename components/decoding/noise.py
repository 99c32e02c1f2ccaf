"""The noise that draws tokens.

It is a fixed field: one number for every (row seed, index of the token in its phase,
vocabulary id), made by integer arithmetic on 32-bit words. A token is the argmax of filtered logits
plus noise, so it does not depend on which rows share a batch, and any other program that computes
the same field draws the same token. The field, with words unsigned and wrapping at 32 bits:

    mix(x):  x ^= x >> 16;  x *= 0x7feb352d;  x ^= x >> 15;  x *= 0x846ca68b;  x ^= x >> 16
    a = mix(low word of the seed ^ mix(index))
    b = mix(high word of the seed ^ mix(a + 0x9e3779b9))
    h = mix(mix(id ^ a) ^ b)
    v = min((h >> 8) * 2^-24 + ((h & 255) + 0.5) * 2^-32, 1 - 2^-24)    float32, rounded once
    e = v + v * v / 2 if v < 2^-10 else -log(1 - v)
    noise = -log(e)                                                     within [-2.82, 22.88]

Values of v near 1 are coarse, but the small ones, by which an unlikely token wins, are told apart
down to 2^-33.
"""

import torch
from torch import Tensor

MIN_NOISE, MAX_NOISE = -2.83, 22.89  # all noise lies between
_GOLDEN = 0x9E3779B9 - (1 << 32)


def noise(seeds: Tensor, indices: Tensor, ids: Tensor) -> Tensor:
    """The noise field, float32. `seeds`, `indices` and `ids` are int64 and broadcast."""
    return gumbel(field(row_words(seeds, indices), low_word(ids)))


def row_words(seeds: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """The words a and b of rows, int32."""
    first = _mix(low_word(seeds) ^ _mix(low_word(indices)))
    return first, _mix(low_word(seeds >> 32) ^ _mix(first + _GOLDEN))


def field(words: tuple[Tensor, Tensor], ids: Tensor, buffer: Tensor | None = None) -> Tensor:
    """The words h of int32 ids, in `buffer` [2, rows, ids] if given."""
    hashed = torch.bitwise_xor(ids, words[0], out=None if buffer is None else buffer[0])
    scratch = torch.empty_like(hashed) if buffer is None else buffer[1]
    return _mix(_mix(hashed, scratch).bitwise_xor_(words[1]), scratch)


def low_word(value: Tensor) -> Tensor:
    """The low 32 bits of int64 as int32."""
    # Moved to the top and back first, so that the conversion cannot overflow.
    return ((value << 32) >> 32).to(torch.int32)


def _mix(word: Tensor, scratch: Tensor | None = None) -> Tensor:
    """A bijection of 32-bit words that spreads every bit, in place; products wrap."""
    shifted = torch.empty_like(word) if scratch is None else scratch
    for bits, factor in ((16, 0x7FEB352D), (15, 0x846CA68B - (1 << 32)), (16, 1)):
        torch.bitwise_right_shift(word, bits, out=shifted)
        word ^= shifted.bitwise_and_((1 << (32 - bits)) - 1)  # the shift carried the sign in
        if factor != 1:
            word *= factor
    return word


def gumbel(word: Tensor) -> Tensor:
    """Gumbel noise from random words: -log of an exponential variate."""
    uniform = (word & 255).float().add_(0.5).mul_(2.0**-32)
    uniform += (word >> 8).bitwise_and_((1 << 24) - 1).float().mul_(2.0**-24)
    uniform.clamp_(max=1 - 2.0**-24)
    series = (uniform * uniform).mul_(0.5).add_(uniform)
    exact = (1 - uniform).log_().neg_()
    return torch.where(uniform < 2.0**-10, series, exact).log_().neg_()
