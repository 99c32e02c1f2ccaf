"""Rows -> numbers."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from pipeline.rows import Row


@dataclass(slots=True)
class PassSummary:
    """Means over the rows that have one pass. Shares lie in [0, 1]; entropy in nats per token."""

    cue: str | None = None
    rows: int = 0
    _sums: dict[str, float] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)

    def add(self, fields: Row) -> None:
        """Count one pass object."""
        self.cue = fields.get("cue")
        self.rows += 1
        self._add("accuracy", fields.get("is_correct_pred"))
        self._add("improved", fields.get("improved_over_pass1"))
        self._add("entropy", fields.get("entropy"))
        self._add("tokens", fields.get("tokens_total"))
        reasons = [value for name, value in fields.items() if name.startswith("stop_reason_")]
        self._add("truncated", "max_new_tokens" in reasons)

    def _add(self, name: str, value: float | None) -> None:
        if value is not None:
            self._sums[name] = self._sums.get(name, 0.0) + value
            self._counts[name] = self._counts.get(name, 0) + 1

    def _mean(self, name: str) -> float | None:
        return self._sums[name] / self._counts[name] if name in self._counts else None

    @property
    def accuracy(self) -> float | None:
        """Share of right answers among those that have a verdict."""
        return self._mean("accuracy")

    @property
    def improved(self) -> float | None:
        """Share of passes that are right where their row's pass 1 was wrong."""
        return self._mean("improved")

    @property
    def entropy(self) -> float | None:
        """Mean over rows of the mean token entropy."""
        return self._mean("entropy")

    @property
    def tokens(self) -> float | None:
        """Mean generated tokens."""
        return self._mean("tokens")

    @property
    def truncated(self) -> float | None:
        """Share of passes in which a phase reached its cap."""
        return self._mean("truncated")


def summarize(rows: Iterable[Row]) -> dict[str, PassSummary]:
    """Summaries by pass, `pass1` first. `pass2` is left out where it repeats a lettered pass."""
    found: dict[str, PassSummary] = {}
    for row in rows:
        names = [n for n in row if n.startswith("pass") and isinstance(row[n], dict)]
        lettered = any(len(name) == 6 for name in names)
        for name in names:
            if not (lettered and name == "pass2"):
                found.setdefault(name, PassSummary()).add(row[name])
    return dict(sorted(found.items()))
