"""What a grader says of one pair."""

from dataclasses import dataclass
from typing import Literal

Limit = Literal["timeout", "memory", "crash"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether prediction equals gold, why, and the seconds that grading took.

    `limit` names the limit that ended the comparison before it was decided; such a pair counts as
    different, and the row's pass says so in `grading`.
    """

    equal: bool
    reason: str
    seconds: float
    limit: Limit | None = None
