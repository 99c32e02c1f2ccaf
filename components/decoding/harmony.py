"""The channels of gpt-oss's harmony format, in the text that a model or a server wrote.

    <|channel|>analysis<|message|>7 * 8 is 56.<|end|><|start|>assistant<|channel|>final<|message|>56

The message of the channel `final` is the answer; those of the others (`analysis`, `commentary`) are
reasoning. Servers that leave special tokens out write `analysis7 * 8 is 56.assistantfinal56`.
Source: https://cookbook.openai.com/articles/openai-harmony
"""

import re
from dataclasses import dataclass

_SPECIAL = r"<\|(?:end|return|call|start|channel)\|>"
_HEADER = r"(?:<\|channel\|>|\A)\s*(\w+)(?:(?!<\|channel\|>).){0,200}?<\|message\|>"
_MESSAGE = re.compile(rf"{_HEADER}(.*?)(?={_SPECIAL}|\Z)", re.DOTALL)
_BEGUN = re.compile(r"<\|channel\|>|\A\s*(?:analysis|commentary|final)\s*<\|message\|>")
_BARE = re.compile(r"\Aanalysis(?:(?=[A-Z])|(?=.*assistantfinal))", re.DOTALL)
FINAL = "final"


@dataclass(frozen=True, slots=True)
class Channels:
    """What a text says aside and as its answer; `final` is None where no answer was begun."""

    reasoning: str
    final: str | None


def channels(text: str) -> Channels | None:
    """The channels of a text, or None where it has none and is an ordinary text."""
    if _BEGUN.search(text):
        messages = [(match[1], match[2]) for match in _MESSAGE.finditer(text)]
        said = [content for channel, content in messages if channel == FINAL]
        aside = [content for channel, content in messages if channel != FINAL]
        return Channels("".join(aside), "".join(said) if said else None)
    bare = _BARE.match(text)
    if bare is None:
        return None
    reasoning, begun, final = text[bare.end() :].partition("assistantfinal")
    return Channels(reasoning, final if begun else None)
