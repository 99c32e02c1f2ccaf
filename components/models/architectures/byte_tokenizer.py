"""A tokenizer whose 256 ids are the bytes of UTF-8, for models that read bytes."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Ids 0 to 255 are bytes; there are no merges and no special tokens.

    It is a byte-level BPE without merges, so that whatever reads such tokenizers (incremental
    decoding, saving, `AutoTokenizer`) reads this one.
    """
    vocabulary = {character: byte for byte, character in characters().items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, padding_side="left"
    )


def characters() -> dict[int, str]:
    """The printable character that byte-level tokenizers write for every byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    plain = {byte: chr(byte) for byte in printable}
    return plain | {byte: chr(256 + number) for number, byte in enumerate(others)}
