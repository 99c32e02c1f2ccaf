"""Where tables are printed: into a terminal of any width, or into a pipe."""

import os

from rich.console import Console

WIDTH = 100  # characters of a line in a pipe, or in a file


def table_console() -> Console:
    """A console as wide as its terminal; into a pipe `WIDTH`, or what COLUMNS says."""
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH
    return console
