"""A stored row back into what a task and a trace work with: its example and its generations."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast, get_args

from pipeline.protocols import Example, FinishReason, Generation, Phase, Task
from pipeline.run.pass_fields import generations_of
from pipeline.run.phases import cap_key
from pipeline.store.files import Row

REASONS = get_args(FinishReason)


def example_of(row: Row) -> Example:
    """The example that a row answers. What is neither pass nor key stays as its metadata."""
    metadata = {k: v for k, v in row.items() if not (k.startswith("pass") and isinstance(v, dict))}
    question = str(row.get("problem") or "")
    name = row.get("example_id")
    return Example(
        str(question if name is None else name), question, row.get("gold_answer"), metadata
    )


def phases_of(row: Mapping[str, Any], task: Task) -> tuple[Phase, ...]:
    """The phases a row was made with: the task's, or one in which the model wrote the tags.

    Their caps are those that the row states, else the task's.
    """
    stored = row.get("pass1") or {}
    single = row.get("phases") == "single" or "stop_reason_output" in stored
    phases = task.phases
    if len(phases) > 1 and single:
        phases = (Phase(name="output", cap=task.max_output_tokens, stop=phases[-1].stop),)
    return tuple(_capped(phase, row.get(cap_key(phase))) for phase in phases)


def _capped(phase: Phase, cap: Any) -> Phase:
    return replace(phase, cap=cap) if type(cap) is int and cap >= 1 else phase


def generations(fields: dict[str, Any], phases: Sequence[Phase]) -> list[Generation]:
    """The generations of a stored pass, with their ids where the row has them.

    Rows of older systems hold only text: it is cut at the tags; a cue at its start is part of it.
    """
    if "segments" in fields and all(phase.name in fields["segments"] for phase in phases):
        return generations_of(fields, phases)
    rest = str(fields.get("output") or "")
    found = []
    for phase in phases:
        reason = fields.get(f"stop_reason_{phase.name}") or fields.get("finish_reason")
        text, tail, rest = _cut(rest, phase)
        found.append(Generation([], text, finish_reason=_reason(reason, bool(tail)), tail=tail))
    return found


def _cut(output: str, phase: Phase) -> tuple[str, str, str]:
    """What a phase generated, the stop string that ended it, and the output after it."""
    opening, lowered = phase.opening.strip(), output.lower()
    start = lowered.find(opening.lower()) if opening else 0
    start = start + len(opening) if start >= 0 else 0
    ends = [(at, stop) for stop in phase.stop if (at := lowered.find(stop.lower(), start)) >= 0]
    if not ends:
        return output[start:], "", ""
    end, stop = min(ends)
    return output[start:end], output[end : end + len(stop)], output[end + len(stop) :]


def _reason(stored: Any, closed: bool) -> FinishReason:
    if stored in REASONS:
        return cast(FinishReason, stored)
    if stored == "length":
        return "max_new_tokens"
    return "stop_token" if closed else "other"
