"""What a loaded model and its tokenizer say of ids, ends and attention."""

from collections.abc import Mapping

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase


def certain_text(tokenizer: PreTrainedTokenizerBase) -> str:
    """Text with the special tokens that prompts are certain to hold."""
    ends = (tokenizer.bos_token, tokenizer.eos_token)
    return "".join([*filter(None, ends), str(tokenizer.chat_template or "")])


def drawable_ids(model: PreTrainedModel, vocabulary: Mapping[str, int]) -> torch.Tensor:
    """A bool [vocabulary]: ids that the tokenizer has, which padded logits exceed."""
    size = model.config.get_text_config().vocab_size
    known = torch.tensor(sorted(vocabulary.values()))
    allowed = torch.zeros(size, dtype=torch.bool)
    allowed[known[known < size]] = True
    return allowed


def end_ids_of(declared: GenerationConfig | None) -> frozenset[int]:
    """The end-of-sequence ids of a checkpoint's generation config, if it has one."""
    ends = declared.eos_token_id if declared else None
    if ends is None:
        return frozenset()
    return frozenset([ends] if isinstance(ends, int) else ends)


def attention_of(model: PreTrainedModel) -> str | None:
    """The implementation of attention in use, which is not always the one asked for."""
    return getattr(model.config.get_text_config(), "_attn_implementation", None)
