"""One point of a run: a RunSpec with its data, phases, cues, fingerprint and folder."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline.protocols import (
    FILTERS,
    STRATEGIES,
    Backend,
    Cue,
    Example,
    Generation,
    Phase,
    Prompt,
    Task,
    spelled,
)
from pipeline.run.budget import Priced
from pipeline.run.pass_fields import cue_hash
from pipeline.run.phases import (
    refuse_format_of_tags,
    refuse_unused_caps,
    resolve_phases,
    with_phases,
)
from pipeline.run.slicing import select
from pipeline.spec import RunSpec, Sampling, digest, require
from pipeline.store.files import Row
from pipeline.store.pass_names import MAX_CUES, stored_passes
from pipeline.store.row_heads import Key

# Part of every fingerprint: raised on purpose, when the same spec comes to make other rows.
ROW_VERSION = 1

NOT_ROW_CHANGING = (
    "num_samples",
    "think_cap",
    "answer_cap",
    "max_new_tokens",
)  # caps: in the phases

DATA_SETTINGS = ("data", "columns")  # of a task: where examples lie, which says nothing of grading


@dataclass(frozen=True, slots=True)
class Point:
    """A RunSpec made ready: what will be asked, and what makes its rows what they are.

    `identity` is flat: config-like keys to JSON values; `fingerprint` is its hash. `grader` is the
    hash of the task's settings without its data: rows that share it are judged alike. `step` is the
    training step. `chosen` are the traces, in order, where they are not every sample of every
    example. `given_pass1` gives the pass 1 that a trace reconsiders, where it is known beforehand
    and not the trace's own, else None.
    """

    spec: RunSpec
    task: Task
    examples: Sequence[Example]
    phases: tuple[Phase, ...]
    cues: tuple[Cue, ...]
    identity: dict[str, Any]
    step: int
    model_name: str = ""  # in rows and in the folder's name; the backend's, where it runs no model
    entropy: str = "exact"  # or why it is null in every row
    overrides: Sequence[str] = ()
    sources: dict[str, str] | None = None  # sampling parameter -> where its value came from
    swept: Mapping[str, str] = field(default_factory=dict)  # of a sweep: what differs in its points
    chosen: Sequence[tuple[Example, int]] | None = None
    given_pass1: Callable[[Example, int], Sequence[Generation] | None] | None = None
    fingerprint: str = field(init=False)
    grader: str = field(init=False)

    def __post_init__(self) -> None:
        """Hash once what stands in every row."""
        settings = {k: v for k, v in self.spec.task.items() if k not in DATA_SETTINGS}
        object.__setattr__(self, "fingerprint", digest(self.identity))
        object.__setattr__(self, "grader", digest(settings)[:12])

    @property
    def title(self) -> str:
        """What tells it from others for a reader: its folder, and the swept keys."""
        folder = self.folder
        made = self.spec.run.dir is None
        return labelled(f"{folder.parent.name}/{folder.name}" if made else str(folder), self.swept)

    @property
    def folder(self) -> Path:
        """Where the point's files lie: `run.dir`, else made from the spec."""
        run, temperature = self.spec.run, self.spec.sampling.temperature
        if run.dir is not None:
            return Path(run.dir)
        name = f"{self.task.name}-{self.model_name}-T{temperature:g}-{self.fingerprint[:8]}"
        return Path(run.root) / run.name / name.replace("/", "_") / f"step-{self.step}"

    @property
    def rows_path(self) -> Path:
        """The rows' file."""
        return self.folder / f"step{self.step:04d}_{self.spec.run.split}.jsonl"

    def keys(self) -> Iterator[tuple[Example, int]]:
        """The traces as they begin, a shared pass-1 sample first: others wait for it."""
        if self.chosen is not None:
            yield from self.chosen
            return
        shared = self.spec.run.pass1_sample
        for example in self.examples:
            samples = range(self.spec.sampling.num_samples)
            for sample in sorted(samples, key=lambda s: (s != shared, s)):
                yield example, sample

    def is_complete(self, row: Row) -> bool:
        """Whether a stored row has a pass for every cue of the spec."""
        have = {fields["cue_hash"] for fields in stored_passes(row)}
        return have >= {cue_hash(cue) for cue in self.cues}

    def canonical_order(self) -> list[Key]:
        """Keys in the order of the finished file: the data's, then sample."""
        count = range(self.spec.sampling.num_samples)
        every = [(example, sample) for example in self.examples for sample in count]
        traces = every if self.chosen is None else self.chosen
        return [Key(example.id, sample) for example, sample in traces]


def labelled(name: str, swept: Mapping[str, str]) -> str:
    """A name, and what tells its bearer from the other points of a sweep."""
    return " ".join([name, *(f"{key}={value}" for key, value in swept.items())])


def prepare(spec: RunSpec, task: Task, backend: Backend) -> Point:
    """Load data, resolve phases and identity, refuse what the backend cannot do. Loads no model."""
    phases = resolve_phases(task, backend, spec)
    refuse_unused_caps(phases, spec, task.name)
    refuse_format_of_tags(phases, spec, task)
    task = with_phases(task, phases)
    refuse_what_it_cannot(spec, backend)
    everything = task.examples()
    require(len(everything) > 0, "task.data", "hold at least one example", 0)
    require(len(spec.cue) <= MAX_CUES, "cue", f"hold {MAX_CUES} cues at most", len(spec.cue))
    cues = tuple(Cue(name, cue.text, cue.control) for name, cue in spec.cue.items())
    model = backend.identity()
    return Point(
        spec=spec,
        task=task,
        examples=select(everything, spec.run),
        phases=phases,
        cues=cues,
        identity=_as_json(_identity(spec, task, everything, phases) | model),
        step=int(model.get("model.step") or 0),
        model_name=model_name(spec, backend),
        entropy=_entropy_note(spec, backend),
    )


def model_name(spec: RunSpec, backend: Backend) -> str:
    """What rows call the model: `model.name`, or the backend where it runs no model."""
    return spec.model.name if backend.capabilities.runs_model else backend.name


def record_of(point: Point) -> dict[str, Any]:
    """What run.json says of a point, before any attempt."""
    sources = point.sources or {}
    sampling = asdict(point.spec.sampling).items()
    return {
        "fingerprint": point.fingerprint,
        "identity": point.identity,
        "grader": point.grader,
        "step": point.step,
        "entropy": point.entropy,
        "rows_wanted": len(point.canonical_order()),
        "spec": asdict(point.spec),
        "sampling": {k: {"value": v, "from": sources.get(k, "spec")} for k, v in sampling},
        "overrides": list(point.overrides),
        "swept": dict(point.swept),
    }


def refuse_what_it_cannot(spec: RunSpec, backend: Backend) -> None:
    """Sampling filters and budgets that the backend cannot honour; it is told of the sampling."""
    off = replace(Sampling(), top_p=1.0)
    honoured = backend.capabilities.filters
    for name in (name for name in (*FILTERS, *STRATEGIES) if name not in honoured):
        value, neutral = getattr(spec.sampling, name), getattr(off, name)
        said = f"{neutral:g}" if type(neutral) in (int, float) else json.dumps(neutral)
        rule = f"be {said} (off) with backend {backend.name}, which does not take it"
        require(value == neutral, f"sampling.{name}", rule, value)
    backend.expect(spec.sampling)
    if spec.run.budget is not None:
        rule = f"be null with backend {backend.name}, whose model has no price (backend.prices)"
        able = isinstance(backend, Priced) and backend.priced()
        require(able, "run.budget", rule, spec.run.budget)


def _entropy_note(spec: RunSpec, backend: Backend) -> str:
    if spec.run.entropy == "none":
        return "null: run.entropy=none"
    if backend.capabilities.entropy:
        return "exact, over the full vocabulary"
    if backend.capabilities.logprobs:
        return (
            f"null: backend {backend.name} shows the likeliest tokens at most; where it does, "
            "entropy_lower_bound is what they imply: the exact mean cannot be below it"
        )
    return f"null: backend {backend.name} shows no probabilities"


def _identity(
    spec: RunSpec, task: Task, examples: Sequence[Example], phases: tuple[Phase, ...]
) -> dict[str, Any]:
    contents = sorted(_content(task, example) for example in examples)
    identity: dict[str, Any] = {"row_version": ROW_VERSION, "task.name": task.name}
    identity["task.data"] = digest(contents)
    for phase in phases:
        identity |= {f"phases.{phase.name}.{k}": v for k, v in asdict(phase).items()}
    sampling = {k: v for k, v in asdict(spec.sampling).items() if k not in NOT_ROW_CHANGING}
    for name in STRATEGIES:  # one that is off is no part of what a row is
        if sampling[name] == getattr(Sampling(), name):
            del sampling[name]
    identity |= {f"sampling.{name}": value for name, value in sampling.items()}
    identity["run.seed"] = spec.run.seed
    identity["run.pass1_sample"] = spec.run.pass1_sample
    return identity


def _as_json(identity: dict[str, Any]) -> dict[str, Any]:
    """The identity as run.json gives it back: a tuple there is a list."""
    same: dict[str, Any] = json.loads(json.dumps(identity))
    return same


def _content(task: Task, example: Example) -> str:
    """What an example asks and what counts as right, messages as the model gets them."""
    return digest([example.id, str(example.target), prompt_text(task.prompt(example))])


def prompt_text(prompt: Prompt) -> list[list[str]]:
    """Messages and prefill as plain text."""
    turns = [[m.role, *(spelled([piece]) for piece in m.content)] for m in prompt.messages]
    return [*turns, ["prefill", *(spelled([piece]) for piece in prompt.prefill)]]
