"""What a chat shows: text as it comes, reasoning dimmed, tokens shaded by entropy."""

import math

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

    def say(self, text: str, style: str = "") -> None:
        """One or more whole lines."""
        self._console.print(Text(printable(text), style), soft_wrap=True)

    def piece(self, text: str, phase: str) -> None:
        """Text as it comes."""
        style = "dim" if phase == THINK else ""
        self._console.print(Text(printable(text), style), end="", soft_wrap=True)

    def ending(self, answer: Answer, entropy: bool) -> None:
        """What follows the text of an answer: reasoning that came apart, shades, numbers."""
        self._console.print()
        for generation in answer.generations:
            if reasoning := generation.backend_columns.get("reasoning"):
                self.say(f"[reasoning] {reasoning}", "dim")
            if entropy:
                self._console.print(shaded(generation), soft_wrap=True)
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


def shaded(generation: Generation) -> Text:
    """A generation's text, each token on a background that says how unsure the model was."""
    text, start = Text(), 0
    for end, entropy in zip(generation.ends or (), generation.entropies or (), strict=False):
        share = 0.0 if math.isnan(entropy) else min(entropy / MOST, 1.0)
        shade = SHADES[round(share * (len(SHADES) - 1))]
        text.append(printable(generation.spelled[start:end]), shade)
        start = max(start, end)
    return text
