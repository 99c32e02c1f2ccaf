"""Where tables are printed: into a terminal of any width, or into a pipe."""

import os

from rich.console import Console

WIDTH = 100  # characters of a line in a pipe, or in a file


class _QuietConsole(Console):
    """Leaves a reader that has read enough, such as `head`, to `command_line.ended`."""

    def on_broken_pipe(self) -> None:
        """Raise the error that led here again, where Rich would end the process with status 1."""
        raise


def table_console() -> Console:
    """A console as wide as its terminal; into a pipe `WIDTH`, or what COLUMNS says."""
    console = _QuietConsole()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH
    return console
