"""A stored generation as ids that a model can be made to follow."""

from collections.abc import Sequence

from components.decoding.detokenizers import HALF
from components.decoding.prompt_encoder import PromptEncoder
from components.decoding.stop_text import StopText
from pipeline.protocols import ForcedTokens, Generation, Prompt


def forced(encoder: PromptEncoder, prompt: Prompt, generation: Generation) -> ForcedTokens:
    """As `Backend.force`, with the tokenizer and template of `encoder`."""
    prompt_ids = encoder.encode(prompt).ids
    ids = generation.token_ids
    if ids and max(ids) < len(encoder.tokenizer):
        ended = generation.finish_reason == "eos"
        text, ends = _spelled(encoder, prompt_ids, ids, ended)
        if _says(text, generation):
            return ForcedTokens(prompt_ids, ids, text, ends)
    ids = encoder.continued(generation.spelled)
    _, ends = _spelled(encoder, prompt_ids, ids, ended=False)
    return ForcedTokens(prompt_ids, ids, generation.spelled, ends, encoded=True)


def _spelled(
    encoder: PromptEncoder, prompt_ids: Sequence[int], ids: Sequence[int], ended: bool
) -> tuple[str, list[int]]:
    """The text of ids after a prompt, and where each ends in it; an end of sequence is no text."""
    text = StopText(encoder.decode, (), prompt_ids, encoder.pieces)
    text.push_all(ids[:-1] if ended else ids)
    if ended:
        text.push_end(ids[-1])
    text.finish()
    return text.text, text.ends


def _says(text: str, generation: Generation) -> bool:
    """Whether ids that spell `text` are those of a stored generation.

    Rows keep neither blanks around a generation's text nor half a character at its end.
    """
    own = text.removesuffix(generation.tail)
    whole = len(own) + len(generation.tail) == len(text)
    return whole and _bare(own) == _bare(generation.text)


def _bare(text: str) -> str:
    return text.strip().rstrip(HALF).strip()
