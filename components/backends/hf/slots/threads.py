"""Threads that share a step on a CPU, each with rows and a core of its own.

Two cores that share every operation wait for each other a thousand times a step, asleep or
spinning; these wait once, so that other work on the machine costs no more than its share.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import torch

Part = TypeVar("Part")
Made = TypeVar("Made")


class Shards:
    """As many threads as torch would use in the calling one, when first needed."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def run(self, work: Callable[[Part], Made], parts: Sequence[Part]) -> list[Made]:
        """Do the parts beside one another; a single part gets all cores.

        Raises:
            Exception: what the first part to fail raised, once all are over.
        """
        if len(parts) < 2:
            return [work(part) for part in parts]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                torch.get_num_threads(), "decoder", torch.set_num_threads, (1,)
            )
        futures = [self._pool.submit(work, part) for part in parts]
        wait(futures)
        return [future.result() for future in futures]

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def halves(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Places of `sizes` in at most `count` groups of about equal sums, none of them empty."""
    groups: list[list[int]] = [[] for _ in range(count)]
    sums = [0] * count
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        least = sums.index(min(sums))
        groups[least].append(place)
        sums[least] += sizes[place]
    return [sorted(group) for group in groups if group]
