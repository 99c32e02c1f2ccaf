"""What a grader says of one pair."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether prediction equals gold, why, and the seconds that grading took."""

    equal: bool
    reason: str
    seconds: float
