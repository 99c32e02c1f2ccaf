"""How a request reaches a decoder's thread, and its generation the event loop.

Both decoders take sequences through here, so cancelling, failing and closing mean the same in both.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from components.decoding.sequence import TokenSequence
from pipeline.protocols import Generation


@dataclass(slots=True, eq=False)
class QueuedSequence:
    """A sequence, the future of whoever waits for it, and its place in the queue."""

    order: tuple[int, int]  # (trace, serial number): sequences of earlier traces go first
    sequence: TokenSequence
    future: asyncio.Future[Generation]


class Submissions:
    """Turns sequences into queued ones and waits for their ends."""

    def __init__(self, put: Callable[[QueuedSequence], None], wake: Callable[[], None]) -> None:
        """`put` queues a sequence; `wake` tells the decoder to look at what has changed."""
        self._put = put
        self._wake = wake
        self._serial = itertools.count()
        self._ended: BaseException | None = None

    @property
    def closed(self) -> bool:
        """Whether no more sequences are taken."""
        return self._ended is not None

    async def submit(self, sequence: TokenSequence) -> Generation:
        """Wait for the sequence's end. Cancelling this call drops it within a step.

        Raises:
            RuntimeError: the decoder is closed, or an error has stopped it.
            Exception: what the sequence failed with.
        """
        if self._ended is not None:
            raise self._ended
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self._put(QueuedSequence((sequence.request.trace_id, next(self._serial)), sequence, future))
        self._wake()
        try:
            return await future
        finally:
            sequence.cancelled = sequence.finish_reason is None
            self._wake()

    def close(self, cause: BaseException | None = None) -> RuntimeError:
        """Take no more sequences; return what those that still wait are to fail with.

        `cause` is the error that stopped the decoder, if one did.
        """
        error = RuntimeError("the backend was closed")
        if cause is not None:
            error = RuntimeError(f"the decoder has stopped: {type(cause).__name__}: {cause}")
            error.__cause__ = cause
        self._ended = self._ended or error
        return error


def hand_back(finished: Iterable[QueuedSequence]) -> None:
    """Give ended sequences to whoever waits for them; on the event loop."""
    for queued in finished:
        if queued.future.done():
            continue
        if queued.sequence.failure is not None:
            queued.future.set_exception(queued.sequence.failure)
        else:
            queued.future.set_result(queued.sequence.generation())


def fail(queue: Iterable[QueuedSequence], error: BaseException) -> None:
    """Let sequences end with an error; on the event loop."""
    for queued in queue:
        if not queued.future.done():
            queued.future.set_exception(error)


def on_this_loop(
    callback: Callable[[str], None], failed: Callable[[Exception], None]
) -> Callable[[str], None]:
    """The callback, to be called from any thread, run on the present event loop.

    What it raises goes to `failed`, and it is not called again.
    """
    loop = asyncio.get_running_loop()
    broken = False

    def call(text: str) -> None:
        nonlocal broken
        if broken:
            return
        try:
            callback(text)
        except Exception as error:  # whoever listens may raise anything; other rows go on
            broken = True
            failed(error)

    def pass_on(text: str) -> None:
        loop.call_soon_threadsafe(call, text)

    return pass_on
