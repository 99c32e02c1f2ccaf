"""`run.pass1_sample`: all samples of an example reconsider the pass 1 of one of them."""

import asyncio
from collections.abc import Callable

from pipeline.protocols import Example
from pipeline.run.pass_fields import generations_of
from pipeline.run.point import Point
from pipeline.run.trace import Passed
from pipeline.store.files import Row
from pipeline.store.row_heads import Key


class SharedPass1:
    """Hands the pass 1 of `run.pass1_sample` to the traces that wait for it.

    Without that setting each trace reconsiders its own.
    """

    def __init__(self, point: Point, stored_row: Callable[[Key], Row | None]) -> None:
        """`stored_row` gives the complete row of a key, if there is one."""
        self._point, self._stored_row = point, stored_row
        self._sample = point.spec.run.pass1_sample if point.cues else None
        self._futures: dict[str, asyncio.Future[Passed]] = {}

    async def to_reconsider(self, example: Example, sample: int, own: Passed) -> Passed:
        """The pass 1 that a sample reconsiders, once there is one; `own` is its own."""
        known = self._point.given_pass1
        given = known(example, sample) if known else None
        if given is not None:
            return given
        if self._sample is None:
            return own
        future = self._future(example)
        if sample == self._sample and not future.done():
            future.set_result(own)
        return await future

    def withhold(self, example: Example, sample: int, error: BaseException) -> None:
        """Tell the traces that wait for the pass 1 of this sample that it will not come."""
        if sample == self._sample:
            future = self._future(example)
            if not future.done():
                future.set_exception(error)
                future.exception()  # nobody may be waiting

    def _future(self, example: Example) -> asyncio.Future[Passed]:
        if example.id not in self._futures:
            future = self._futures[example.id] = asyncio.get_running_loop().create_future()
            assert self._sample is not None
            stored = self._stored_row(Key(example.id, self._sample))
            if stored is not None:
                future.set_result(generations_of(stored["pass1"], self._point.phases))
        return self._futures[example.id]
