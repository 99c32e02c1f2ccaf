"""A tokenizer whose 256 ids are the bytes of UTF-8, for models that read bytes."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from components.decoding.byte_level import characters_of_bytes


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Ids 0 to 255 are bytes; there are no merges and no special tokens.

    It is a byte-level BPE without merges, so that whatever reads such tokenizers (incremental
    decoding, saving, `AutoTokenizer`) reads this one.
    """
    vocabulary = {character: byte for byte, character in characters_of_bytes().items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, padding_side="left"
    )
