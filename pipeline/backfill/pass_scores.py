"""Entropies for the passes of stored rows, by scoring what they say after the prompts they had."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.backfill.points import trace_of
from pipeline.backfill.stored_rows import generations, phases_of
from pipeline.backfill.unscored_passes import cue_of, unscored
from pipeline.protocols import (
    Backend,
    Cue,
    Example,
    ForcedTokens,
    Generation,
    Phase,
    Prompt,
    Task,
    TokenScores,
)
from pipeline.run.pass_fields import (
    SeriesPolicy,
    assemble,
    cue_prefix,
    cue_token,
    entropy_fields,
    joined,
    marker_fields,
    think_tokens,
)
from pipeline.run.phases import with_phases
from pipeline.run.trace import continuing, reconsidering
from pipeline.store.files import Row
from pipeline.store.pass_names import FIRST, passes_with_output, repeats

Fields = dict[str, Any]
FirstPass = Callable[[Row, str], Fields | None]  # of the row's example, by its output


@dataclass(slots=True)
class ForcedPass:
    """A stored pass made ready to be scored: its generations, and the ids of each phase."""

    name: str
    example: Example
    phases: tuple[Phase, ...]
    generations: list[Generation]
    cue: Cue | None
    prefills: bool
    forced: list[ForcedTokens]


@dataclass(slots=True)
class RowScoring:
    """Rebuilds what a row's passes were asked, for one task, backend and choice of cues."""

    task: Task
    backend: Backend
    cues: Sequence[Cue]
    first_pass: FirstPass  # a pass 1 that another row holds
    force: bool = False

    def passes(self, row: Row) -> list[ForcedPass]:
        """The passes of a row that are to be scored.

        Raises:
            SpecError: a prompt cannot be written.
        """
        phases = phases_of(row, self.task)
        example, _ = trace_of(row)
        prompt = with_phases(self.task, phases).prompt(example)
        made = []
        for name in unscored(row, self.force):
            fields = row[name]
            cue = None if name == FIRST else cue_of(fields, self.cues)
            if name != FIRST and cue is None:
                continue
            prefills = bool(fields.get("cue_prefilled", True))
            asked = prompt
            if cue is not None:
                prior = generations(self._shown(row, fields), phases)
                asked = reconsidering(phases, prompt, prior, cue)
            given = [_own(generation, fields, cue) for generation in generations(fields, phases)]
            one = ForcedPass(name, example, phases, given, cue, prefills, [])
            self._force(one, asked)
            made.append(one)
        return made

    def _shown(self, row: Row, fields: Fields) -> Fields:
        """The pass 1 that a later pass reconsidered."""
        shown, own = fields.get("prev_output"), row[FIRST]
        if not isinstance(shown, str) or shown == own.get("output"):
            return dict(own)
        return self.first_pass(row, shown) or {"output": shown}

    def _force(self, one: ForcedPass, asked: Prompt) -> None:
        """Find the ids of every phase; those after it continue from exactly these."""
        before: list[Generation] = []
        for generation in one.generations:
            prompt = continuing(one.phases, asked, before, one.cue, one.prefills)
            forced = self.backend.force(prompt, generation)
            one.forced.append(forced)
            if forced.encoded:  # an end of sequence is not among its ids, and not to be dropped
                ended = generation.finish_reason == "eos"
                generation = replace(
                    generation,
                    token_ids=list(forced.token_ids),
                    finish_reason="other" if ended else generation.finish_reason,
                )
            before.append(generation)


def _own(generation: Generation, fields: Fields, cue: Cue | None) -> Generation:
    """A generation without the cue, which in old rows is part of the text that it opened."""
    if cue is None or "segments" in fields:
        return generation
    text = generation.text.lstrip()
    own = text.removeprefix(cue.text.strip())
    return replace(generation, text=own.lstrip()) if own != text else generation


def scored_fields(one: ForcedPass, scores: Sequence[TokenScores], keep: SeriesPolicy) -> Fields:
    """What a pass gets: mean entropies and, as `keep` says, the series, as of a run."""
    made = [
        replace(
            generation,
            text=forced.text.removesuffix(generation.tail),
            token_ids=list(forced.token_ids),
            ends=None if forced.ends is None else list(forced.ends),
            entropies=score.entropies,
            logprobs=score.logprobs,
        )
        for generation, forced, score in zip(one.generations, one.forced, scores, strict=True)
    ]
    output = assemble(one.phases, made, cue_prefix(one.cue) if one.prefills else "")
    marks = marker_fields(output, one.example, one.cue, one.prefills)
    start = cue_token(output, one.cue, marks["reconsider_pos"])
    num_think = think_tokens(output, one.phases)
    fields: Fields = dict(entropy_fields(one.phases, made, start, num_think))
    if keep.arrays and keep.entropy == "full":
        fields["entropies"] = joined(made, "entropies")
        fields["logprobs"] = joined(made, "logprobs")
        fields["token_ends"] = output.ends
    fields["ids"] = "encoded" if any(forced.encoded for forced in one.forced) else "stored"
    return fields


def with_scores(row: Row, scored: dict[str, Fields], mark: Fields) -> Row:
    """A row whose passes have their entropies; everything else in it stays as it is.

    `mark` says which model scored. Logprobs and ends that are there are of the tokens of whoever
    generated the row, and stay.
    """
    changed = dict(row)
    for name, fields in scored.items():
        old = {k: v for k, v in row[name].items() if k != "entropy_missing"}
        there = {k: old[k] for k in ("logprobs", "token_ends") if old.get(k) is not None}
        entropies = {k: v for k, v in fields.items() if k != "ids"}
        changed[name] = old | entropies | there | {"scored": mark | {"ids": fields["ids"]}}
    _repeat(changed, scored)
    return changed


def _repeat(row: Row, scored: dict[str, Fields]) -> None:
    """Copy the means to the `pass2` that repeats a lettered pass."""
    passes = passes_with_output(row)
    for name, fields in passes.items():
        if not repeats(name, passes):
            continue
        told = ("cue_hash", "output")
        for source in (row[other] for other in scored if other != FIRST):
            if all(source.get(key) == fields.get(key) for key in told):
                means = {k: v for k, v in source.items() if k.startswith("entropy")}
                row[name] = fields | means | {"scored": source["scored"]}
