"""Tokenizers that spell what has no token of its own in bytes, one id each."""

from collections.abc import Callable, Sequence

from transformers import PreTrainedTokenizerBase

from components.decoding.detokenizers import HALF, ByteIds


def byte_ids_of(
    tokenizer: PreTrainedTokenizerBase, decode: Callable[[Sequence[int]], str]
) -> ByteIds | None:
    """The ids of the 256 bytes; None for tokenizers that do not fall back on bytes.

    A run of them is tried, so that a tokenizer that only has such tokens is not taken for one.
    """
    vocabulary = tokenizer.get_vocab()
    names = {f"<0x{byte:02X}>": byte for byte in range(256)}
    if not vocabulary.keys() >= names.keys():
        return None
    euro = [vocabulary[f"<0x{byte:02X}>"] for byte in "\u20ac".encode()]
    broken = [*euro, vocabulary["<0xE2>"]]
    if (decode(euro), decode(broken)) != ("\u20ac", HALF * len(broken)):
        return None
    return ByteIds({vocabulary[name]: byte for name, byte in names.items()})
