"""Prompts that a model cannot read."""

from collections.abc import Sequence

from pipeline.protocols import PromptTooLongError
from pipeline.spec import require


def refuse_prompt(
    ids: Sequence[int], context: int | None, vocabulary: int, max_length: int | None
) -> None:
    """Refuse a prompt that is empty, too long, or has ids beyond the model's embedding.

    Args:
        ids: the prompt's.
        context: positions that the model has.
        vocabulary: ids that it has an embedding for.
        max_length: `model.max_length`.

    Raises:
        PromptTooLongError: the prompt fills the model's positions.
        SpecError: names the config key and both sizes.
    """
    rule = "hold at least one token: the model has no beginning of sequence to start from"
    require(len(ids) > 0, "the prompt", rule, "none")
    if context is not None and len(ids) >= context:
        raise PromptTooLongError(
            f"model.max_length must be below {context}, the positions that the model has, for "
            f"prompts such as this one of {len(ids)} tokens; it is {max_length}"
        )
    rule = f"write ids below {vocabulary}, the size of the model's embedding, in every prompt"
    largest = max(ids, default=0)
    require(largest < vocabulary, "model.tokenizer", rule, largest)
