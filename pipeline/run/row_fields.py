"""The columns of a row: the example's, the passes, and what the run and the attempt were."""

from collections.abc import Mapping
from typing import Any

from pipeline.protocols import STRATEGIES, Backend, Example
from pipeline.run.backend_columns import ROW_COLUMNS, lift
from pipeline.run.point import Point
from pipeline.spec import Sampling, digest
from pipeline.store.files import Row

SAMPLING_COLUMNS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def row_of(
    point: Point,
    example: Example,
    sample: int,
    passes: Mapping[str, Any],
    backend: Backend,
    stored: Row | None = None,
) -> Row:
    """The row of one (example, sample); `attempt` is still to be added.

    `stored` is the row that gets more passes: it keeps the columns that it has from its backend.
    """
    spec = point.spec
    lifted, passes = lift(passes)
    lifted = {name: stored[name] for name in ROW_COLUMNS if stored and name in stored} | lifted
    caps = {phase.name: phase.cap for phase in point.phases}
    return {
        **example.metadata,
        "problem": example.question,
        "example_id": example.id,
        "sample_idx": sample,
        "gold_answer": example.target,
        "step": point.step,
        "split": spec.run.split,
        **passes,
        "task": point.task.name,
        "phases": "tagged" if len(point.phases) > 1 else "single",
        "model": point.model_name,
        "revision": spec.model.revision,
        "backend": backend.name,
        **lifted,
        "quantization": backend.quantization,
        **{name: getattr(spec.sampling, name) for name in SAMPLING_COLUMNS},
        **strategy_columns(spec.sampling),
        "think_cap": caps.get("think"),
        "answer_cap": caps.get("answer"),
        "max_new_tokens": caps.get("output"),
        "seed": spec.run.seed,
        "grader": point.grader,
        "fingerprint": point.fingerprint,
    }


def strategy_columns(sampling: Sampling) -> dict[str, Any]:
    """Columns for the strategies that are on; a schema by its hash, as run.json has all of it."""
    off = Sampling()
    used = {name: getattr(sampling, name) for name in STRATEGIES}
    used = {name: value for name, value in used.items() if value != getattr(off, name)}
    if "json_schema" in used:
        used["json_schema"] = digest(used["json_schema"])[:12]
    return used
