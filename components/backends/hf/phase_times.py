"""What loading, prefill and decoding take: seconds, and what each added to the memory's peak."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SECONDS_BETWEEN_LOOKS = 0.25  # at memory, while one phase goes on: a look may cost 0.1 ms


class PhaseTimes:
    """Seconds and bytes by phase. On CUDA a step's time falls where its results are waited for."""

    def __init__(self, peak: Callable[[], int]) -> None:
        """`peak` tells the most bytes that were in use so far."""
        self._peak = peak
        self._seen = 0  # the peak at the last look
        self._looked: tuple[str, float] = ("", 0.0)
        self._lap = time.perf_counter()
        self._seconds: dict[str, float] = {}
        self._bytes: dict[str, int] = {}

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Count what happens inside as a phase's."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._add(name, time.perf_counter() - started)

    def begin(self) -> None:
        """Start the first lap."""
        self._lap = time.perf_counter()

    def lap(self, name: str) -> None:
        """Count the time since the last lap as a phase's."""
        before, self._lap = self._lap, time.perf_counter()
        self._add(name, self._lap - before)

    def _add(self, name: str, seconds: float) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds
        phase, at = self._looked
        now = time.perf_counter()
        if name != phase or now - at > _SECONDS_BETWEEN_LOOKS:
            self._look(name)

    def _look(self, name: str) -> None:
        self._looked = (name, time.perf_counter())
        peak = self._peak()
        self._bytes[name] = self._bytes.get(name, 0) + peak - self._seen
        self._seen = peak

    def describe(self) -> dict[str, dict[str, float]]:
        """Each phase's seconds and `peak_added_bytes`.

        The first phase has what was there before it. The bytes add up to the peak at this moment.
        """
        if self._looked[0]:
            self._look(self._looked[0])
        return {
            name: {"seconds": round(seconds, 4), "peak_added_bytes": self._bytes.get(name, 0)}
            for name, seconds in self._seconds.items()
        }
