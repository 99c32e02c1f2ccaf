"""Tokenizers whose text is their ids' bytes one after another, and those bytes."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from tokenizers.decoders import ByteLevel
from transformers import PreTrainedTokenizerBase

from components.decoding.detokenizers import Pieces

_TRIED = 500  # ids by which the table is compared with the tokenizer


def pieces_of(
    tokenizer: PreTrainedTokenizerBase, decode: Callable[[Sequence[int]], str]
) -> Pieces | None:
    """The bytes of every id of a byte-level tokenizer; None for other kinds.

    The table is compared with `decode` on random ids, so that a tokenizer that only looks
    byte-level is not taken for one.
    """
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not isinstance(backend.decoder, ByteLevel):
        return None
    vocabulary = tokenizer.get_vocab()
    table = {character: byte for byte, character in characters_of_bytes().items()}
    spelled = [b""] * (1 + max(vocabulary.values()))
    for token, number in vocabulary.items():
        known = all(character in table for character in token)
        spelled[number] = bytes(table[c] for c in token) if known else token.encode()
    rng = random.Random(0)
    ids = rng.choices(sorted(vocabulary.values()), k=_TRIED) + list(tokenizer.all_special_ids)
    joined = b"".join(spelled[number] for number in ids).decode(errors="replace")
    return Pieces.of(spelled) if joined == decode(ids) else None


def characters_of_bytes() -> dict[int, str]:
    """The printable character that byte-level tokenizers write for every byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    plain = {byte: chr(byte) for byte in printable}
    return plain | {byte: chr(256 + number) for number, byte in enumerate(others)}
