"""What a chat shows: text as it comes, reasoning dimmed, tokens shaded by entropy."""

import math
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from components.grading.answers import THINK
from launch.talk.commands import cost_line
from launch.talk.conversation import Answer
from pipeline.protocols import Generation

# A model's control characters would steer the terminal: they are shown, tab and newline apart.
_CONTROLS = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n"}
_CONTROLS |= {code: "\ufffd" for code in range(0x7F, 0xA0)}
SHADES = ("", "on grey15", "on grey23", "on grey35", "on dark_orange3", "on red3")
MOST = 3.0  # nats from which the last shade is taken


class Screen:
    """Prints to one console; text is never read as markup."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._reasoning = self._reasoned = False  # the last piece was, some piece was
        self._in_line = False  # text has begun a line that is not ended

    def say(self, text: str, style: str = "") -> None:
        """One or more whole lines, after those that pieces left."""
        self.end_line()
        self._reasoning = self._reasoned = False
        self._console.print(Text(printable(text), style), soft_wrap=True)

    def piece(self, text: str, phase: str) -> None:
        """Text as it comes; what is thought before the answer is dim, under a name of its own."""
        thought = phase == THINK
        if thought != self._reasoning:
            self.end_line()
            self._write("[reasoning] " if thought else "[answer] ", "dim")
            self._reasoning, self._reasoned = thought, True
        self._write(text, "dim" if thought else "")

    def end_line(self) -> None:
        """Go to a new line, unless that is where the text has ended."""
        if self._in_line:
            self._console.print()
        self._in_line = False

    def _write(self, text: str, style: str) -> None:
        self._in_line = not text.endswith("\n")
        self._console.print(Text(printable(text), style), end="", soft_wrap=True)

    def ending(self, answer: Answer, entropy: bool) -> None:
        """What follows the text of an answer: reasoning that came apart, shades, numbers."""
        self.end_line()
        for generation in answer.generations:
            reasoning = generation.backend_columns.get("reasoning")
            if reasoning and not self._reasoned:  # the service did not stream it
                self.say(f"[reasoning] {reasoning}", "dim")
            if entropy:
                shown = shaded if self._console.color_system else numbered
                self._console.print(shown(generation), soft_wrap=True)
        self.say(f"[{cost_line(answer)}]", "dim")

    def both(self, before: Answer, after: Answer) -> None:
        """The answer before a cue and the one after it."""
        self.say("[before]", "bold")
        self.say(before.text)
        self.say("[after]", "bold")
        self.say(after.text)


def printable(text: str) -> str:
    """Text whose control characters steer no terminal."""
    return text.translate(_CONTROLS)


def numbered(generation: Generation) -> Text:
    """A generation's text for where there are no colours: behind each token its entropy in nats."""
    return Text("".join(f"{token}[{entropy:.2f}]" for token, entropy in _tokens(generation)))


def shaded(generation: Generation) -> Text:
    """A generation's text, each token on a background that says how unsure the model was."""
    text = Text()
    for token, entropy in _tokens(generation):
        share = 0.0 if math.isnan(entropy) else min(entropy / MOST, 1.0)
        text.append(token, SHADES[round(share * (len(SHADES) - 1))])
    return text


def _tokens(generation: Generation) -> Iterator[tuple[str, float]]:
    """Each token's own part of the text, printable, with its entropy."""
    start = 0
    for end, entropy in zip(generation.ends or (), generation.entropies or (), strict=False):
        yield printable(generation.spelled[start:end]), entropy
        start = max(start, end)
