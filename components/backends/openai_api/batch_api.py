"""Settings of the Batch API."""

from dataclasses import dataclass

from components.backends.openai_api.pace import duration
from pipeline.spec import require


@dataclass(frozen=True, slots=True)
class BatchApi:
    """Settings of the Batch API.

    A batch is submitted when `gather_seconds` brought no further request, or at `max_requests`
    requests; it is looked at every `poll_seconds`. `completion_window` is what the service is
    asked for (`24h`). `path` is the endpoint that its lines name, null: OpenAI's.
    """

    enabled: bool = False
    max_requests: int = 20_000
    gather_seconds: float = 10.0
    poll_seconds: float = 60.0
    completion_window: str = "24h"
    path: str | None = None

    def __post_init__(self) -> None:
        """Check ranges."""
        rule, number = "be 1 or more", self.max_requests
        require(number >= 1, "backend.batch.max_requests", rule, number)
        for name in ("gather_seconds", "poll_seconds"):
            value = getattr(self, name)
            require(value > 0, f"backend.batch.{name}", "be above 0", value)
        rule, window = "be a duration such as 24h", self.completion_window
        require(bool(duration(window)), "backend.batch.completion_window", rule, window)
