"""Which examples a run takes: a filter by ids, a seeded shuffle, then a slice."""

import hashlib
from collections.abc import Sequence

from pipeline.protocols import Example
from pipeline.spec import Run, SpecError, require


def select(examples: Sequence[Example], run: Run) -> list[Example]:
    """The examples of `run`: `ids`, then `shuffle_seed`, then `from_end` or `start` and `limit`.

    Without a shuffle the data set's order stays. The shuffle orders by hash(seed, id), so an
    example keeps its place relative to the others when examples are added, removed or moved.

    Raises:
        SpecError: unknown ids, `from_end` beside `start` or `limit`, or nothing left.
    """
    require(len(examples) > 0, "task.data", "hold at least one example", 0)
    chosen = list(examples)
    if run.ids is not None:
        chosen = _with_ids(chosen, run.ids)
    if run.shuffle_seed is not None:
        seed = run.shuffle_seed
        chosen.sort(key=lambda example: _rank(seed, example.id))
    if run.from_end is not None:
        _alone(run)
        return chosen[-run.from_end :]
    rule = f"be below the number of examples to choose from, {len(chosen)}"
    require(run.start < len(chosen), "run.start", rule, run.start)
    end = None if run.limit is None else run.start + run.limit
    return chosen[run.start : end]


def _with_ids(examples: Sequence[Example], ids: Sequence[str]) -> list[Example]:
    require(len(ids) > 0, "run.ids", "be null or name at least one example", ids)
    wanted = {str(name) for name in ids}
    missing = sorted(wanted - {example.id for example in examples})
    if missing:
        some = ", ".join(example.id for example in examples[:3])
        raise SpecError(f"run.ids must be ids of the data set (such as {some}), got {missing}")
    return [example for example in examples if example.id in wanted]


def _rank(seed: int, name: str) -> bytes:
    return hashlib.sha256(f"{seed}/{name}".encode()).digest()


def _alone(run: Run) -> None:
    beside = {"start": run.start or None, "limit": run.limit}
    for name, value in beside.items():
        rule = "be left out when run.from_end is given (it counts from the other end)"
        require(value is None, f"run.{name}", rule, value)
