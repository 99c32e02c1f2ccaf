"""What happens to one (example, sample): its phases, then every cue. The only two-pass code."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pipeline.protocols import (
    Backend,
    BackendLostError,
    Cue,
    Example,
    Generation,
    Group,
    Message,
    Phase,
    Prompt,
    PromptTooLongError,
    Request,
    StoppedError,
    Task,
)
from pipeline.run.budget import Budget
from pipeline.run.pass_fields import (
    SeriesPolicy,
    assemble,
    build_pass,
    cue_hash,
    cue_prefix,
    failure_fields,
    generations_of,
    not_made,
)
from pipeline.run.phases import assistant_turn, sampling_of
from pipeline.run.seeds import row_seed
from pipeline.spec import RunSpec
from pipeline.store.files import Row, StoreError
from pipeline.store.journal import PASS1, Entry, Journal
from pipeline.store.pass_names import Fields, name_passes, stored_passes
from pipeline.store.row_heads import Key

Passed = Sequence[Generation]
# Hears a text as it is made, and the name of its phase; `think` also for what comes apart from it.
Listener = Callable[[str, str], None]


Outcome = TypeVar("Outcome")
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class Trace:
    """One (example, sample) of one point on its way to a row."""

    spec: RunSpec
    task: Task
    phases: tuple[Phase, ...]
    cues: tuple[Cue, ...]
    backend: Backend
    journal: Journal
    budget: Budget
    example: Example
    sample: int
    number: int
    row: Row | None = None  # what an earlier attempt finished, where a cue was added since
    shown: Callable[[Passed], Awaitable[Passed]] | None = None  # own pass 1 -> the one to show
    stopping: Callable[[], bool] = lambda: False  # whether further requests are not to be sent
    listener: Listener | None = None  # of pass 1

    @property
    def key(self) -> Key:
        """The key of the row that this trace makes."""
        return Key(self.example.id, self.sample)

    async def run(self) -> Fields:
        """Every pass of this trace as pass objects by name.

        `pass1`, then one per cue in the spec's order.
        """
        prompt = self.task.prompt(self.example)
        first = await self._first(prompt)
        passes = {"pass1": await self._finish(first, None)}
        prior = first if self.shown is None else await self.shown(first)
        stored = {p["cue_hash"]: p for p in stored_passes(self.row)}
        later = await _all_of(
            [self._again(prompt, prior, cue, passes["pass1"], stored) for cue in self.cues]
        )
        asked = {cue_hash(cue) for cue in self.cues}
        return passes | name_passes(later + [p for h, p in stored.items() if h not in asked])

    async def _first(self, prompt: Prompt) -> Passed:
        if self.row is not None:
            return generations_of(self.row["pass1"], self.phases)
        return await self._pass(prompt, None)

    async def _again(
        self,
        prompt: Prompt,
        prior: Passed,
        cue: Cue,
        pass1: Fields,
        stored: dict[str, Fields],
    ) -> Fields:
        """One reconsideration.

        A pass that the stored row has already is returned as it is.
        """
        if cue_hash(cue) in stored:
            return stored[cue_hash(cue)]
        again = await self._pass(reconsidering(self.phases, prompt, prior, cue), cue)
        fields = await self._finish(again, cue)
        fields["prev_output"] = assemble(self.phases, prior, "").text
        right, before = fields.get("is_correct_pred"), pass1.get("is_correct_pred")
        known = right is not None and before is not None
        fields["improved_over_pass1"] = bool(right) and not before if known else None
        return fields

    async def _pass(self, prompt: Prompt, cue: Cue | None) -> Passed:
        """All phases of one pass, each continuing from the exact ids of those before it.

        Where the context has no room for the prompt of a phase, the generations of this phase and
        of those after it are empty and say so. Pass 1 raises if it cannot even begin.
        """
        generations: list[Generation] = []
        for phase in self.phases:
            continued = continuing(self.phases, prompt, generations, cue, self._prefills)
            try:
                generations.append(await self._ask(continued, phase, cue))
            except PromptTooLongError as error:
                if cue is None and not generations:
                    raise
                name = f"cue {cue.name}" if cue else "pass 1"
                _LOG.warning("%s, %s, phase %s: %s", self._label, name, phase.name, error)
                num_left = len(self.phases) - len(generations)
                return generations + [not_made(error) for _ in range(num_left)]
        return generations

    @property
    def _label(self) -> str:
        return f"{self.example.id}, sample {self.sample}"

    @property
    def _prefills(self) -> bool:
        return self.backend.capabilities.assistant_prefill

    async def _ask(self, prompt: Prompt, phase: Phase, cue: Cue | None) -> Generation:
        entry = Entry(self.key, cue_hash(cue) if cue else PASS1, phase.name)
        journalled = self.journal.get(entry)
        if journalled is not None:
            return journalled
        request = self._request(prompt, phase, cue)
        async with self.budget.aside(self.backend, request) as account:
            if self.stopping():
                raise StoppedError
            generation = await self.backend.generate(account.request)
            self.journal.put(entry, generation)
            account.generations.append(generation)
        await self.journal.synced()
        if generation.prompt_cut:
            cut = "%s, phase %s: model.max_length cut %d tokens off the prompt"
            _LOG.info(cut, self._label, phase.name, generation.prompt_cut)
        return generation

    def _request(self, prompt: Prompt, phase: Phase, cue: Cue | None) -> Request:
        seed_key = (self.spec.run.seed, self.example.id, self.sample)
        opens = cue is None and phase is self.phases[0]
        size = self.spec.sampling.num_samples if opens else 1
        group = Group(f"{self.example.id}/{phase.name}", self.sample if opens else 0, size)
        listener = self.listener if cue is None else None
        return Request(
            prompt=prompt,
            stop=phase.stop,
            cap=phase.cap,
            sampling=sampling_of(phase, self.phases, self.spec.sampling),
            seed=row_seed(*seed_key, cue.text if cue else None, phase.name),
            trace_id=self.number,
            group=group,
            entropy=self.spec.run.entropy != "none",
            on_token=listener and (lambda text: listener(text, phase.name)),
            on_reasoning=listener and (lambda text: listener(text, "think")),
        )

    async def _finish(self, generations: Passed, cue: Cue | None) -> Fields:
        """The fields of a pass, built and scored off the event loop: both may take their time."""
        if cue is None and self.row is not None:
            return dict(self.row["pass1"])
        return await asyncio.to_thread(self._fields, generations, cue)

    def _fields(self, generations: Passed, cue: Cue | None) -> Fields:
        keep = SeriesPolicy(self.spec.run.entropy, self.spec.run.arrays)
        fields: Fields = {"prev_output": None}
        fields |= build_pass(self.example, self.phases, generations, cue, keep, self._prefills)
        fields |= failure_fields(generations)
        if generations[0].error:
            return fields
        by_phase = {p.name: g for p, g in zip(self.phases, generations, strict=True)}
        fields |= self.task.score(self.example, by_phase)
        right = fields.get("is_correct_pred")
        marked = fields["has_reconsider_cue"]
        fields["is_correct_after_reconsideration"] = None if right is None else marked and right
        return fields


def reconsidering(phases: Sequence[Phase], prompt: Prompt, prior: Passed, cue: Cue) -> Prompt:
    """The prompt of a later pass: pass 1's turn follows the question, then the cue as user turn."""
    turn = Message("assistant", (*prompt.prefill, *assistant_turn(phases, prior)))
    messages = (*prompt.messages, turn, Message("user", (cue.text,)))
    return Prompt(messages, prompt.prefill)


def continuing(
    phases: Sequence[Phase], prompt: Prompt, generations: Passed, cue: Cue | None, prefills: bool
) -> Prompt:
    """The prompt of the next phase of a pass.

    Where the backend continues an assistant turn (`prefills`), the turn so far is its prefill, and
    a cue opens it.
    """
    if not prefills:
        return prompt
    turn = assistant_turn(phases, generations, cue_prefix(cue))
    return Prompt(prompt.messages, (*prompt.prefill, *turn))


async def _all_of(work: Sequence[Coroutine[Any, Any, Outcome]]) -> list[Outcome]:
    """The results of coroutines that run side by side.

    An error is raised once all of them have ended, so that what the others finish is journalled and
    not asked for again. Only an error that ends the whole run cancels them.
    """
    tasks = [asyncio.create_task(one) for one in work]
    pending = set(tasks)
    try:
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                if isinstance(task.exception(), BackendLostError | StoreError):
                    task.result()
        return [task.result() for task in tasks]
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
