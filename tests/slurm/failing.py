"""A backend that fails where a test wants it."""

import os
from typing import Any

from components.backends.echo import Echo
from pipeline.protocols import Generation, Request
from pipeline.spec import ModelSpec


class FailsInRank(Echo):
    """Echo whose requests fail in one rank of a job."""

    def __init__(
        self,
        model: ModelSpec,
        capacity: int = 16,
        seconds_per_token: float = 0.0,
        rank: int = 0,
    ) -> None:
        super().__init__(model, capacity, seconds_per_token)
        self.rank = rank

    def identity(self) -> dict[str, Any]:
        return super().identity() | {"fails_in_rank": self.rank}

    async def generate(self, request: Request) -> Generation:
        if int(os.environ.get("SLURM_PROCID", "0")) == self.rank:
            raise RuntimeError(f"rank {self.rank} is broken on purpose")
        return await super().generate(request)
