"""Which parameters a refusal speaks of, and what of its text merely repeats the prompt."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

UNKNOWN = re.compile(
    r"unsupported|unrecognized|unexpected|unknown|extra inputs|extra fields|not enabled"
    r"|not allowed|not support|not permitted",
    re.IGNORECASE,
)
ECHO = 3  # so many words in a row that stand in the prompt are taken from there
SIGNS = "\"'/\\"
ESCAPE = re.compile(r"\\(?:[nrt\"'/\\]|u[0-9a-f]{4})", re.IGNORECASE)
WORD = re.compile(r"\w+")


class Complaint:
    """What a service says about a request that it refuses."""

    def __init__(
        self,
        body: Mapping[str, Any],
        text: str,
        named: str | None = None,
        accepted: Collection[str] = (),
    ) -> None:
        """`named` is the parameter that the error names, if any.

        `accepted` are parameters that the service took with another prompt: it can hardly mean
        them where the prompt itself has such a word.
        """
        prompt = _prompt_words(body)
        self.text = _without_echo(text, prompt)
        if named is not None and named in body:
            self.names = [named]
        else:
            spoken = set(prompt) & set(accepted)
            self.names = [name for name in _spoken_of(body, self.text) if name not in spoken]

    @property
    def is_about_names(self) -> bool:
        """Whether it says that something is unknown, rather than too large or the like."""
        return UNKNOWN.search(self.text) is not None


def _spoken_of(body: Mapping[str, Any], text: str) -> list[str]:
    """The parameters of the body that a text names."""
    text = text.lower()
    quoted = dict.fromkeys(re.findall(r"['\"`]([a-z_]+)['\"`]", text))
    found = [word for word in quoted if word in body]
    if found:
        return found
    # A name such as `stop` is also a word; one such as `top_k` is not.
    sure = [name for name in body if "_" in name or UNKNOWN.search(text)]
    return [name for name in sure if re.search(rf"\b{name}\b", text)]


def _without_echo(text: str, prompt: list[str]) -> str:
    """`text` with blanks in place of what it repeats of the prompt, however it is escaped."""
    text = ESCAPE.sub(lambda found: found[0][1] if found[0][1] in SIGNS else " ", text)
    found = list(WORD.finditer(text))
    size, joined = min(ECHO, len(prompt)), f" {' '.join(prompt)} "
    repeated: set[int] = set()
    for start in range(len(found) - size + 1 if size else 0):
        window = " ".join(word[0].lower() for word in found[start : start + size])
        if f" {window} " in joined:
            repeated |= set(range(start, start + size))
    for number in repeated:
        begin, end = found[number].span()
        text = text[:begin] + " " * (end - begin) + text[end:]
    return text


def _prompt_words(body: Mapping[str, Any]) -> list[str]:
    """The words of all that a body asks, in lower case."""
    asked = (body.get(name) for name in ("messages", "prompt", "input"))
    return [word for text in _texts(list(asked)) for word in WORD.findall(text.lower())]


def _texts(value: object) -> Iterator[str]:
    """Every string in a nested value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts(list(value.values()))
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
