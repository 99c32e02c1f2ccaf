"""Reasoning that a model writes into its text, told from the answer while both come."""

from collections.abc import Callable, Iterator

from components.grading.answers import OUTPUT, THINK

Show = Callable[[str, str], None]  # text as it comes, and the name of its phase
# What opens reasoning at the start of a text, and what closes it.
TAGS = {
    "<think>": "</think>",
    "<|channel|>analysis<|message|>": "<|end|><|start|>assistant<|channel|>final<|message|>",
}


class ReasoningSplit:
    """Takes a text piece by piece; gives pieces, and whether each is reasoning. Tags are left out.

    What may be the beginning of a tag waits for the next piece. Only a text that begins with a tag
    has reasoning, or one whose prompt ended with it.
    """

    def __init__(self, prompt: str = "") -> None:
        """`prompt` is the text that the model goes on from."""
        end = prompt.rstrip()
        self._closing = next((TAGS[tag] for tag in TAGS if end.endswith(tag)), None)
        self._decided = self._after_tag = self._closing is not None
        self._held = ""

    def take(self, text: str) -> Iterator[tuple[str, bool]]:
        """The pieces that are certain once `text` has come."""
        self._held += text
        if not self._decided:
            self._decide()
        if not self._decided:
            return
        if self._closing is not None:
            reasoning, closed, _ = self._held.partition(self._closing)
            unsure = 0 if closed else _num_begun(self._held, self._closing)
            yield from self._give(len(reasoning) - unsure)
            if not closed:
                return
            self._held = self._held.removeprefix(self._closing)
            self._closing, self._after_tag = None, True
        yield from self.rest()

    def rest(self) -> Iterator[tuple[str, bool]]:
        """What waited, once the text has ended."""
        yield from self._give(len(self._held))

    def _decide(self) -> None:
        start = self._held.lstrip()
        tag = next((tag for tag in TAGS if start.startswith(tag)), None)
        if tag is not None:
            self._closing, self._held, self._after_tag = TAGS[tag], start[len(tag) :], True
        self._decided = tag is not None or not any(tag.startswith(start) for tag in TAGS)

    def _give(self, length: int) -> Iterator[tuple[str, bool]]:
        """So many characters of what waits; blanks that follow a tag are left out."""
        text, self._held = self._held[:length], self._held[length:]
        text = text.lstrip() if self._after_tag else text
        if text:
            self._after_tag = False
            yield text, self._closing is not None


def _num_begun(text: str, tag: str) -> int:
    """How many characters at the end of a text may begin a tag."""
    return max(n for n in range(len(tag)) if text.endswith(tag[:n]))


class Parted:
    """Shows a text that comes in pieces, its reasoning as the phase `think`."""

    def __init__(self, show: Show, prompt: str) -> None:
        """`prompt` is the text that the model goes on from."""
        self._show, self._split = show, ReasoningSplit(prompt)

    def take(self, text: str, phase: str) -> None:
        """The next piece, and the phase that it is from."""
        if phase == OUTPUT:
            self._show_all(self._split.take(text))
        else:
            self._show(text, phase)

    def end(self) -> None:
        """The text has ended."""
        self._show_all(self._split.rest())

    def _show_all(self, pieces: Iterator[tuple[str, bool]]) -> None:
        for text, is_reasoning in pieces:
            self._show(text, THINK if is_reasoning else OUTPUT)
