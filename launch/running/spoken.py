"""The answer to a single prompt of the config: `task.prompt="..."`.

A terminal shows it as it comes, reasoning dim, as a chat does. Anywhere else goes its text alone.
"""

import sys
from collections.abc import Sequence

from rich.console import Console

from launch.running.text_output import rows_in_order
from launch.talk.reasoning import Parted
from launch.talk.screen import Screen
from pipeline.protocols import Backend
from pipeline.run.point import Point, labelled
from pipeline.run.session import Session
from pipeline.store.files import Row
from pipeline.store.pass_names import stored_passes


def is_spoken(points: Sequence[Point]) -> bool:
    """Whether a run is one prompt that the config holds, so that a person waits for its answer."""
    return len(points) == 1 and len(points[0].spec.task.get("texts") or ()) == 1


class Spoken:
    """Shows the answers of a point: a single one as it comes, several once all are there."""

    def __init__(self, point: Point, backend: Backend) -> None:
        """Nothing is shown yet."""
        self._point, self._backend = point, backend
        self._screen = Screen(Console(highlight=False, emoji=False))
        self._parted: Parted | None = None
        self._heard = False

    def on_start(self, sessions: Sequence[Session]) -> None:
        """Listen, in a terminal, to the only trace there is."""
        if sys.stdout.isatty() and self._point.spec.sampling.num_samples == 1:
            prompt = self._point.task.prompt(self._point.examples[0])
            self._label()
            self._parted = Parted(self._screen.piece, self._backend.preview(prompt))
            sessions[0].listener = self._hear

    def _hear(self, text: str, phase: str) -> None:
        assert self._parted is not None
        self._heard = True
        self._parted.take(text, phase)

    def finish(self) -> None:
        """Show what was not heard: of rows that were there, of several samples, of later passes."""
        if self._parted is not None:
            self._parted.end()
        self._screen.end_line()
        if not self._heard:
            self._label()
        for row in rows_in_order(self._point):
            self._row(row)

    def _label(self) -> None:
        """Of a sweep, what tells this point from the others."""
        if self._point.swept:
            self._say(f"[{labelled('', self._point.swept).strip()}]", "dim")

    def _row(self, row: Row) -> None:
        if self._point.spec.sampling.num_samples > 1:
            self._say(f"[sample {row['sample_idx']}]", "dim")
        if not self._heard:
            self._say(row["pass1"]["output"])
        for fields in stored_passes(row):
            self._say(f"[after {fields['cue']}]", "dim")
            self._say(fields["output"])

    def _say(self, text: str, style: str = "") -> None:
        """Lines as they are; what could steer a terminal is shown there."""
        if sys.stdout.isatty():
            self._screen.say(text, style)
        else:
            print(text)
