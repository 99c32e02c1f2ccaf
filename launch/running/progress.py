"""Signs of life while rows are made: a bar in a terminal; in a pipe and in the log, lines."""

import datetime
import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from pipeline.protocols import Backend
from pipeline.run.point import Point
from pipeline.run.session import Session
from pipeline.store.files import Row

SECONDS_BETWEEN_LINES = 30.0
SECONDS_BETWEEN_LOOKS = 1.0
TOKEN_COUNTERS = ("generated_tokens", "completion_tokens")  # of `Backend.describe`
_LOG = logging.getLogger(__name__)


class Progress:
    """Rows done and tokens generated so far by all points that share a backend.

    Tokens are those that the backend counts, so that they move before the first row is whole.
    """

    def __init__(
        self,
        points: Sequence[Point],
        backend: Backend,
        console: Console | None = None,
        seconds_between_lines: float = SECONDS_BETWEEN_LINES,
    ) -> None:
        self._points, self._backend = points, backend
        self._console = console or Console(stderr=True)
        self._seconds_between_lines = seconds_between_lines
        name = _name(points[0]) if len(points) == 1 else f"{len(points)} points"
        self._total = sum(map(num_rows, points))
        self._bar = _bar(self._console)
        self._bar_task = self._bar.add_task(name, total=self._total, rate="loading the model")
        self._done = self._tokens_before = 0
        self._start: float | None = None  # None: the model is being loaded
        self._made = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look_again, name="progress", daemon=True)

    def __enter__(self) -> Self:
        """Show the bar, or begin to print lines where there is no terminal."""
        if self._console.is_terminal:
            self._bar.start()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Leave the bar as it is."""
        self._stop.set()
        self._thread.join()
        self._refresh()
        self._bar.stop()

    def on_start(self, sessions: Sequence[Session]) -> None:
        """Say what runs where, once the model is loaded and the rows to do are known."""
        to_do = sum(len(session.todo) for session in sessions)
        about = self._backend.describe()
        self._total, self._start = to_do, time.monotonic()
        self._tokens_before = tokens_of(about)
        line = start_line(self._points, about, to_do)
        _LOG.info(line)
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def on_row(self, session: Session, row: Row | None) -> None:
        """Count one more trace, finished or failed."""
        self._done += 1

    def line(self) -> str:
        """How it stands, in one line."""
        now = time.monotonic()
        if self._start is None:
            return f"loading the model since {now - self._made:.0f} s"
        tokens, seconds = self._tokens(), max(now - self._start, 1e-9)
        rate = f"{tokens} tokens, {tokens / seconds:.0f} tokens/s"
        return f"{self._done} of {self._total} rows, {rate}, time left: {self._left(seconds)}"

    def _left(self, seconds: float) -> str:
        """The time left, by the rows that `seconds` made.

        It is unknown until as many rows have ended as were open at once: rows that begin together
        end together, and the first of them says little.
        """
        if self._done < max(1, min(self._backend.capacity, self._total)):
            return "unknown"
        rest = seconds * (self._total - self._done) / self._done
        return str(datetime.timedelta(seconds=round(rest)))

    def _tokens(self) -> int:
        return tokens_of(self._backend.describe()) - self._tokens_before

    def _look_again(self) -> None:
        last_line = time.monotonic()
        pause = min(SECONDS_BETWEEN_LOOKS, self._seconds_between_lines)
        while not self._stop.wait(pause):
            self._refresh()
            if time.monotonic() - last_line >= self._seconds_between_lines:
                last_line, line = time.monotonic(), self.line()
                _LOG.info(line)
                if not self._console.is_terminal:
                    self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _refresh(self) -> None:
        if self._start is None:
            return
        tokens, seconds = self._tokens(), max(time.monotonic() - self._start, 1e-9)
        rate = f"{tokens} tokens, {tokens / seconds:.0f} tokens/s, left: {self._left(seconds)}"
        self._bar.update(self._bar_task, total=self._total, completed=self._done, rate=rate)


def _bar(console: Console) -> Bar:
    return Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        console=console,
    )


def _name(point: Point) -> str:
    """The task, and what tells this point from others of its sweep."""
    keys = (f"{key.rpartition('.')[2]}={value}" for key, value in point.swept.items())
    return " ".join([point.task.name, *keys])


def num_rows(point: Point) -> int:
    """Rows of a complete point."""
    return len(point.examples) * point.spec.sampling.num_samples


def tokens_of(about: dict[str, Any]) -> int:
    """Generated tokens so far, by what `Backend.describe` says; 0 where it does not count them."""
    return next((about[name] for name in TOKEN_COUNTERS if about.get(name) is not None), 0)


def start_line(points: Sequence[Point], about: dict[str, Any], to_do: int) -> str:
    """Model, device, data type, decoder, rows to do, and the folder they go to."""
    models = ", ".join(sorted({point.model_name for point in points}))
    device = f"on {about.get('device') or 'an unnamed device'}"
    kinds = [about.get("dtype"), about.get("decoder") and f"decoder {about['decoder']}"]
    where = ", ".join([device, *filter(None, kinds)])
    folders = [str(point.folder) for point in points]
    folder = folders[0] if len(folders) == 1 else os.path.commonpath(folders)
    several = f" of {len(points)} points" if len(points) > 1 else ""
    total = sum(map(num_rows, points))
    return f"{models} {where}: {to_do} of {total} rows{several} to do, into {folder}"
