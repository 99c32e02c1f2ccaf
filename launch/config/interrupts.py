"""Ctrl-C at any moment ends a command with one sentence and status 130; imports next to nothing.

A command is guarded before its libraries load, which takes seconds. `interruptible` is for its
work, where Ctrl-C is a `KeyboardInterrupt`; before and after it the process ends at once.
"""

import atexit
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
SENTENCE = "interrupted"


def guard() -> None:
    """Let Ctrl-C end this process from now on, until it has nothing left to do but to go."""
    signal.signal(signal.SIGINT, _end)
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # the last to be called


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C be a `KeyboardInterrupt` in the block, where the process is guarded.

    Once one has come out of the block, another Ctrl-C ends the process.
    """
    if signal.getsignal(signal.SIGINT) is not _end:
        yield
        return
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
    finally:
        signal.signal(signal.SIGINT, _end)


def _end(number: int, frame: FrameType | None) -> None:
    """End without what Python does at an end: threads and half-imported modules may hang it."""
    os.write(2, f"{SENTENCE}\n".encode())
    os._exit(INTERRUPTED)
