"""Which phases a run has: the task's own, or one where the model writes the tags itself."""

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace

from pipeline.protocols import Backend, Generation, Phase, Piece, Task
from pipeline.spec import RunSpec, Sampling, require

CAP_KEYS = {"think": "think_cap", "answer": "answer_cap", "output": "max_new_tokens"}
REASONING = ("think", "output")  # phases in which a model may reason at length


def resolve_phases(task: Task, backend: Backend, spec: RunSpec) -> tuple[Phase, ...]:
    """The phases of this run, caps overridden by `sampling`, else by `model.reasoning_cap`.

    A tagged task needs a backend that continues a prefilled assistant turn; others get a single
    phase.
    """
    tagged = len(task.phases) > 1
    prefill = backend.capabilities.assistant_prefill
    if tagged and spec.run.phases == "tagged":
        rule = f"not be tagged with backend {backend.name}, which cannot continue an assistant turn"
        require(prefill, "run.phases", rule, spec.run.phases)
    single = tagged and (spec.run.phases == "single" or not prefill)
    phases = (_single(task),) if single else task.phases
    return tuple(_capped(phase, spec) for phase in phases)


def with_phases(task: Task, phases: tuple[Phase, ...]) -> Task:
    """A copy of the task whose prompts state the caps of these phases."""
    asking = copy(task)
    asking.phases = phases
    return asking


def _single(task: Task) -> Phase:
    return Phase(name="output", cap=task.max_output_tokens, stop=task.phases[-1].stop)


def _capped(phase: Phase, spec: RunSpec) -> Phase:
    room = spec.model.reasoning_cap if phase.name in REASONING else None
    given = (getattr(spec.sampling, cap_key(phase)), room)
    cap = next((cap for cap in given if cap is not None), phase.cap)
    able = isinstance(cap, int) and cap >= 1
    require(able, f"the cap of phase {phase.name}", "be a number of tokens, 1 or more", cap)
    return replace(phase, cap=cap)


def cap_key(phase: Phase) -> str:
    """The key of `sampling` that caps a phase; `max_new_tokens` for a name of a task's own."""
    return CAP_KEYS.get(phase.name, "max_new_tokens")


def refuse_unused_caps(phases: Iterable[Phase], spec: RunSpec, task: str) -> None:
    """Refuse a cap of `sampling` for which no phase is there, naming the keys that count."""
    keys = {phase.name: cap_key(phase) for phase in phases}
    caps = " and ".join(f"sampling.{key} for {name}" for name, key in keys.items())
    rule = f"be left out: it caps no phase that task {task} has in this run; use {caps}"
    for name in CAP_KEYS.values():
        cap = getattr(spec.sampling, name)
        require(cap is None or name in keys.values(), f"sampling.{name}", rule, cap)


def refuse_format_of_tags(phases: Sequence[Phase], spec: RunSpec, task: Task) -> None:
    """Refuse a format where the model writes the tags itself: with it, it could not."""
    writes_tags = len(task.phases) > len(phases)
    for name in ("regex", "json_schema"):
        value = getattr(spec.sampling, name)
        rule = (
            f"be null for task {task.name} in a single phase (run.phases), whose text holds the "
            "tags that the answer is found by"
        )
        require(value is None or not writes_tags, f"sampling.{name}", rule, value)


def sampling_of(phase: Phase, phases: Sequence[Phase], sampling: Sampling) -> Sampling:
    """How a phase is sampled: a format is for the phase that answers, which is the last."""
    if phase is phases[-1] or sampling.regex is sampling.json_schema is None:
        return sampling
    return replace(sampling, regex=None, json_schema=None)


def missing(forced: str, tail: str) -> str:
    """What of the `forced` text the generation has not written itself.

    Its `tail` may hold the start of it.
    """
    shared = 0
    while shared < min(len(forced), len(tail)) and forced[shared] == tail[shared]:
        shared += 1
    return forced[shared:]


def assistant_turn(
    phases: Sequence[Phase], generations: Sequence[Generation], prefix: str = ""
) -> tuple[Piece, ...]:
    """The assistant's turn: forced text and generations, through the forced text that comes next.

    With fewer generations than phases it is the prefill of the next phase. `prefix` (a cue and a
    space) is forced after the first opening.
    """
    pieces: list[Piece] = [phases[0].opening + prefix]
    for index, generation in enumerate(generations):
        following = phases[index + 1].opening if index + 1 < len(phases) else ""
        pieces += [generation, missing(phases[index].closing + following, generation.tail)]
    return tuple(piece for piece in pieces if piece != "")
