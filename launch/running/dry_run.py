"""`run.dry=true`: what a line would ask, and what it would be refused for. Writes nothing."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

from launch.config.compose import build
from launch.running.console import table_console
from pipeline.protocols import Backend, Cue, Example, Generation, Group, Phase, Prompt, Request
from pipeline.run.budget import Priced
from pipeline.run.point import Point, record_of
from pipeline.run.trace import continuing, reconsidering
from pipeline.spec import SpecError, digest
from pipeline.store.leases import Leases
from pipeline.store.stored_record import refuse_other_spec


@dataclass(slots=True)
class PlannedPoint:
    """A point as a dry run sees it."""

    point: Point
    backend: Backend
    missing: int  # rows that are not there yet
    refusals: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Rows that the point has when it is complete."""
        return len(self.point.examples) * self.point.spec.sampling.num_samples

    @property
    def requests(self) -> int:
        """Generations that the missing rows take, at most."""
        return self.missing * (1 + len(self.point.cues)) * len(self.point.phases)

    @property
    def max_cost(self) -> float | None:
        """USD for the missing rows if every generation uses its cap; None without a price."""
        if not isinstance(self.backend, Priced) or not self.backend.priced():
            return None
        point, backend = self.point, self.backend
        asked = (r for e in point.examples for r in requests_of(point, e, backend))
        per_sample = sum(backend.worst_cost(request) for request in asked)
        return per_sample * self.missing / max(1, len(point.examples))


def show_dry_run(planned: Sequence[PlannedPoint]) -> None:
    """Print one prompt of each pass, then every point with its requests and its cost.

    Raises:
        SpecError: the same line without `run.dry` would be refused; it says why.
    """
    seen = set()
    for plan in planned:
        spec = plan.point.spec
        cue_texts = [cue.text for cue in plan.point.cues]
        if (key := digest([spec.task, cue_texts, spec.model.name, spec.backend])) not in seen:
            seen.add(key)
            _show_prompts(plan)
    console = table_console()
    if len(planned) > 1:
        console.print(_points_table(planned))
    else:
        _show_point(planned[0])
    refusals = {line: None for plan in planned for line in (*plan.refusals, *refusals_of(plan))}
    if refusals:
        raise SpecError(f"without run.dry this line is refused: {'; '.join(refusals)}")


def _show_prompts(plan: PlannedPoint) -> None:
    point, cues, example = plan.point, plan.point.cues, plan.point.examples[0]
    said = [stand_in(f"[{p.name}: up to {p.cap} tokens by the model]") for p in point.phases]
    for number, cue in enumerate((None, *cues)):
        name = "pass 1" if cue is None else f"pass 2{_letter(number, len(cues))}, cue {cue.name}"
        print(f"--- {point.task.name}, {point.model_name}, {example.id}, {name}")
        _, prompt = next(prompts_of(point, example, plan.backend, cue, said))
        print(plan.backend.preview(prompt))
    print("---")


def _letter(number: int, num_cues: int) -> str:
    return chr(ord("a") + number - 1) if num_cues > 1 else ""


def _show_point(plan: PlannedPoint) -> None:
    point = plan.point
    passes, phases = 1 + len(point.cues), len(point.phases)
    there = "" if plan.missing == plan.rows else f" to do, of {plan.rows}"
    line = f"{plan.missing} rows{there} x {passes} passes x {phases} phases"
    print(f"{line} = {plan.requests} requests")
    if plan.max_cost is not None:
        print(f"cost: {plan.max_cost:.4f} USD at most, if every generation uses its cap")
    print(f"folder: {point.folder}")


def _points_table(planned: Sequence[PlannedPoint]) -> Table:
    costs = [plan.max_cost for plan in planned]
    total = sum(plan.requests for plan in planned)
    known = [cost for cost in costs if cost is not None]
    money = f", {sum(known):.4f} USD at most" if known else ""
    title = f"{len(planned)} points, {total} requests{money}; nothing is generated"
    table = Table(title=title, title_style="")
    for name in ("point", "rows there", "requests", "USD at most"):
        table.add_column(name, overflow="fold")
    for plan, cost in zip(planned, costs, strict=True):
        there = f"{plan.rows - plan.missing}/{plan.rows}"
        price = "" if cost is None else f"{cost:.4f}"
        table.add_row(plan.point.title, there, str(plan.requests), price)
    return table


def prompts_of(
    point: Point, example: Example, backend: Backend, cue: Cue | None, said: Sequence[Generation]
) -> Iterator[tuple[Phase, Prompt]]:
    """The prompts of a pass, phase by phase; `said` stands for what the model says in each."""
    prefills = backend.capabilities.assistant_prefill
    prompt = point.task.prompt(example)
    if cue is not None:
        prompt = reconsidering(point.phases, prompt, said, cue)
    for index, phase in enumerate(point.phases):
        yield phase, continuing(point.phases, prompt, said[:index], cue, prefills)


def stand_in(text: str) -> Generation:
    """Stands for what a model said: text without ids."""
    return Generation([], text, "stop_token")


def requests_of(point: Point, example: Example, backend: Backend) -> Iterator[Request]:
    """The requests of one sample, their prompts as long as they may become.

    A byte counts as a token in `Priced.worst_cost`, so a byte stands for each token of a cap.
    """
    said = [stand_in("x" * phase.cap) for phase in point.phases]
    for cue in (None, *point.cues):
        for phase, prompt in prompts_of(point, example, backend, cue, said):
            group = Group(example.id, 0, 1)
            yield Request(prompt, phase.stop, phase.cap, point.spec.sampling, 0, 0, group)


def refusals_of(plan: PlannedPoint) -> Iterator[str]:
    """Why the point would not begin, as far as can be seen without loading a model."""
    point = plan.point
    try:
        refuse_other_spec(point.folder, record_of(point))
        if point.spec.tracking:
            build("tracking", point.spec.tracking)
    except SpecError as error:
        yield str(error)
    there = next(path for path in (point.folder, *point.folder.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        yield f"{there} cannot be written; set run.root or run.dir to a folder that can"
    yield from _writers(point.folder, point)


def _writers(folder: Path, point: Point) -> Iterator[str]:
    others = Leases(folder, point.spec.run.lease_seconds).others()
    if point.spec.run.shards == 1 and not point.spec.run.wait:
        for writer in (name for name, alive in others.items() if alive):
            yield f"{folder} is being written by {writer}; wait for it to end"
