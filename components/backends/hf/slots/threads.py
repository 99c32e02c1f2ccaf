"""Threads that share a step on a CPU, each with its own sequences and its own core.

Cores that share every operation wait for each other a thousand times in a step. These wait once,
so other work on the machine costs a step no more than the core time that it takes.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


class ThreadTeam:
    """As many threads as torch uses in the calling thread, started when first needed."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def run(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Do the items in parallel; a single item is done in the calling thread, with all cores.

        Raises:
            Exception: what the first item to fail raised, once all have ended.
        """
        if len(items) < 2:
            return [work(item) for item in items]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                torch.get_num_threads(), "decoder", torch.set_num_threads, (1,)
            )
        futures = [self._pool.submit(work, item) for item in items]
        wait(futures)
        return [future.result() for future in futures]

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def balanced_groups(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Indices of `sizes` in at most `count` groups of about equal sums, none of them empty."""
    groups: list[list[int]] = [[] for _ in range(count)]
    sums = [0] * count
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        smallest = sums.index(min(sums))
        groups[smallest].append(place)
        sums[smallest] += sizes[place]
    return [sorted(group) for group in groups if group]
