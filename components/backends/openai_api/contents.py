"""The text and the reasoning in a message's content, whatever parts it comes in."""

from collections.abc import Mapping, Sequence
from typing import Any

from components.decoding import harmony

THINKING = ("thinking", "reasoning")


def clean(text: str) -> str:
    """`text` with half surrogate pairs replaced: no file and no request could hold them."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def text_and_reasoning(content: object) -> tuple[str, str]:
    """The answer's text and the reasoning that came inside of the content.

    Content is a string, or parts of which some are the model's thinking (Mistral). What is no text,
    such as an image, is left out.

    Raises:
        TypeError: the content is something else.
    """
    if content is None:
        return "", ""
    if isinstance(content, str):
        return _by_channel(clean(content))
    if isinstance(content, Mapping):
        content = [content]
    if not isinstance(content, Sequence):
        raise TypeError(f"content is {type(content).__name__}")
    aside = [_thinking(part) for part in content]
    said = [_text(part) for part, thought in zip(content, aside, strict=True) if not thought]
    return clean("".join(said)), clean("".join(aside))


def _text(part: Any) -> str:
    text = part.get("text") if isinstance(part, Mapping) else part
    return text if isinstance(text, str) else ""


def _thinking(part: Any) -> str:
    if not isinstance(part, Mapping) or part.get("type") not in THINKING:
        return ""
    inner = part.get("thinking") or part.get("reasoning") or part.get("text") or ""
    return inner if isinstance(inner, str) else "".join(_text(one) for one in inner)


def _by_channel(text: str) -> tuple[str, str]:
    """Answer and reasoning of gpt-oss, as servers without a parser for it hand them out."""
    channels = harmony.channels(text)
    return (text, "") if channels is None else (channels.final or "", channels.reasoning)


def message_reasoning(message: Mapping[str, Any]) -> str:
    """What a message holds of reasoning beside its content, under any of its names."""
    return clean(reasoning_piece(message))


def reasoning_piece(message: Mapping[str, Any]) -> str:
    """The same of a piece of a message, which may end in half a surrogate pair."""
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if reasoning:
        return str(reasoning)
    details = message.get("reasoning_details")
    parts = details if isinstance(details, list) else []
    texts = [p.get("text") or p.get("summary") or "" for p in parts if isinstance(p, Mapping)]
    return "".join(str(text) for text in texts)
