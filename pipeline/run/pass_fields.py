"""The pass object of a row: output text, entropies, tokens, markers and tags."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from pipeline.protocols import Cue, Example, Generation, Phase, PromptTooLongError
from pipeline.run.backend_columns import finite_mean, join_backend_columns
from pipeline.run.markers import INJECTED, excerpt, find_markers
from pipeline.spec import digest

TAGS = re.compile(r"<(/?)(think|answer)>", re.IGNORECASE)
TAG_ORDER = ["think", "/think", "answer", "/answer"]
THINK_BLOCK = re.compile(r"<think>(.*?)(?:</think>|<answer>|\Z)", re.IGNORECASE | re.DOTALL)
UNSCORED = (
    "pred_answer",
    "pred_answer_canon",
    "is_correct_pred",
    "is_correct_after_reconsideration",
)
ARRAYS = ("token_ids", "entropies", "logprobs", "token_ends")


@dataclass(slots=True)
class SeriesPolicy:
    """How much of the token series a row keeps, as `run.entropy` and `run.arrays` say."""

    entropy: str = "full"
    arrays: bool = True


@dataclass(slots=True)
class Output:
    """Assembled text of a pass.

    `segments[name]` is where a phase's generated text lies in it, `ends` where each token ends.
    """

    text: str
    segments: dict[str, list[int]]
    ends: list[int] | None


@lru_cache
def cue_hash(cue: Cue) -> str:
    """Identity of a cue: its text and kind, not its name."""
    return digest([cue.text, cue.control])[:16]


def cue_prefix(cue: Cue | None) -> str:
    """What a cue forces at the start of the reasoning: its text and one space."""
    return f"{cue.text} " if cue else ""


def assemble(phases: Sequence[Phase], generations: Sequence[Generation], prefix: str) -> Output:
    """Join tags and texts, stripped of the blanks inside tags."""
    out, segments, ends = "", {}, []
    for index, (phase, generation) in enumerate(zip(phases, generations, strict=True)):
        raw = (prefix if index == 0 else "") + generation.text
        body = raw.strip()
        begin = len(raw) - len(generation.text)
        floor = len(out) + len(phase.opening.strip())
        offset = floor - (len(raw) - len(raw.lstrip())) + begin
        within = np.array([0, len(generation.text), *(generation.ends or ())])
        first, last, *some = np.clip(within + offset, floor, floor + len(body)).tolist()
        segments[phase.name] = [first, last]
        ends += some
        out += phase.opening.strip() + body + (phase.closing or generation.tail.strip())
    has_ends = all(generation.ends is not None for generation in generations)
    return Output(out, segments, ends if has_ends else None)


def valid_tags(text: str) -> bool:
    """Exactly one of each tag, think before answer."""
    return [f"{slash}{name.lower()}" for slash, name in TAGS.findall(text)] == TAG_ORDER


def joined(generations: Sequence[Generation], name: str) -> list[Any] | None:
    """A token series over all phases; None where a phase lacks it."""
    parts = [getattr(generation, name) for generation in generations]
    return None if any(part is None for part in parts) else [x for part in parts for x in part]


def reasoning_span(text: str, segments: Mapping[str, Sequence[int]]) -> tuple[int, int]:
    """Where the reasoning lies in an output: think phase, else a think block, else all of it."""
    if "think" in segments:
        opening = text.lower().find("<think>") + len("<think>")
        return opening, segments["think"][1]
    block = THINK_BLOCK.search(text)
    return block.span(1) if block else (0, len(text))


def marker_fields(
    output: Output, example: Example, cue: Cue | None, cue_in_text: bool
) -> dict[str, Any]:
    """Reconsideration markers, where the earliest is, and what surrounds it."""
    start, end = reasoning_span(output.text, output.segments)
    think = output.text[start:end]
    names, position = find_markers(think, len(cue_prefix(cue)) if cue and cue_in_text else 0)
    if cue and not cue.control:
        names = [INJECTED, *names]
    known = position is not None
    return {
        "has_reconsider_cue": bool(names),
        "reconsider_markers": names,
        "reconsider_pos": position,
        "reconsider_context": f"{example.question}\n\n{think[:position]}" if known else None,
        "reconsider_excerpt": excerpt(think, position) if position is not None else None,
    }


def cue_token(output: Output, cue: Cue | None, position: int | None) -> int | None:
    """Index of the token at which reconsideration starts.

    0 after an injected cue, else the marker's token.
    """
    if cue and not cue.control:
        return 0
    if position is None or output.ends is None:
        return None
    at = reasoning_span(output.text, output.segments)[0] + position
    return next((index for index, end in enumerate(output.ends) if end > at), None)


def think_tokens(output: Output, phases: Sequence[Phase]) -> int | None:
    """How many tokens of the first phase are reasoning, where the model writes the tags itself.

    These are the tokens that begin before its think block ends, the closing tag included, as it is
    in a think phase. None where the phase is reasoning and nothing else, or where it is not known
    which text a token is.
    """
    end = reasoning_span(output.text, output.segments)[1]
    if phases[0].name == "think" or output.ends is None or end == len(output.text):
        return None
    closing = TAGS.match(output.text, end)
    if closing and closing[0].lower() == "</think>":
        end = closing.end()
    return sum(begin < end for begin in [0, *output.ends][: len(output.ends)])


def entropy_fields(
    phases: Sequence[Phase],
    generations: Sequence[Generation],
    start: int | None,
    num_think: int | None = None,
) -> dict[str, float | None]:
    """Mean entropies in nats: all, per phase, before the cue or marker, and from it on.

    `start` is the token of the cue or marker, and `num_think` how many tokens of the first phase
    are reasoning (None: all of them).
    """
    fields: dict[str, float | None] = {"entropy": finite_mean(joined(generations, "entropies"))}
    for phase, generation in zip(phases, generations, strict=True):
        fields[f"entropy_{phase.name}"] = finite_mean(generation.entropies)
    series, think = joined(generations, "entropies"), generations[0].entropies
    known = start is not None and series is not None and think is not None
    fields["entropy_pre_cue"] = finite_mean(think[:start]) if known and think else None
    fields["entropy_reconsider_think"] = (
        finite_mean(think[start:num_think]) if known and think else None
    )
    fields["entropy_reconsider_full"] = finite_mean(series[start:]) if known and series else None
    return fields


def token_fields(phases: Sequence[Phase], generations: Sequence[Generation]) -> dict[str, Any]:
    """Counts and stop reasons per phase; they do not depend on what is kept of the entropies."""
    counts = [generation.count for generation in generations]
    fields: dict[str, Any] = {"tokens_total": sum(counts)}
    for phase, generation, count in zip(phases, generations, counts, strict=True):
        fields[f"tokens_{phase.name}"] = count
        fields[f"stop_reason_{phase.name}"] = generation.finish_reason
    if "tokens_think" in fields:
        fields["tokens_end_think"] = fields["tokens_think"]
    fields["finish_reason"] = generations[-1].finish_reason
    fields["prompt_tokens"] = generations[0].prompt_tokens
    fields["prompt_cut"] = max(generation.prompt_cut for generation in generations)
    fields["tails"] = {p.name: g.tail for p, g in zip(phases, generations, strict=True) if g.tail}
    fields["seconds"] = round(sum(generation.seconds for generation in generations), 4)
    return fields


def build_pass(
    example: Example,
    phases: Sequence[Phase],
    generations: Sequence[Generation],
    cue: Cue | None,
    keep: SeriesPolicy,
    cue_in_text: bool = True,
) -> dict[str, Any]:
    """All fields of a pass but its score.

    `cue_in_text`: the cue was prefilled, so the output begins with it.
    """
    output = assemble(phases, generations, cue_prefix(cue) if cue_in_text else "")
    fields: dict[str, Any] = {"output": output.text}
    marks = marker_fields(output, example, cue, cue_in_text)
    start = cue_token(output, cue, marks["reconsider_pos"])
    entropies = entropy_fields(phases, generations, start, think_tokens(output, phases))
    fields |= dict.fromkeys(entropies) if keep.entropy == "none" else entropies
    fields |= marks | token_fields(phases, generations)
    fields["valid_tag_structure"] = valid_tags(output.text)
    fields["segments"] = output.segments
    if cue:
        fields |= {"cue": cue.name, "cue_text": cue.text, "cue_hash": cue_hash(cue)}
        fields |= {"control": cue.control, "cue_prefilled": cue_in_text}
    fields["token_ids"] = joined(generations, "token_ids")
    if keep.arrays and keep.entropy == "full":
        fields["entropies"] = joined(generations, "entropies")
        fields["logprobs"] = joined(generations, "logprobs")
        fields["token_ends"] = output.ends
    return fields | join_backend_columns(
        phases, generations, keep.arrays and keep.entropy == "full"
    )


def not_made(error: PromptTooLongError) -> Generation:
    """An empty generation that stands for one whose prompt had no room in the context."""
    return Generation([], "", "max_context", entropies=[], logprobs=[], ends=[], error=str(error))


def failure_fields(generations: Sequence[Generation]) -> dict[str, Any]:
    """What a pass says about a generation that could not be made; nothing if there is none.

    `error` says why. A pass that could not begin is not scored: `answer_status` is `failed`, and
    whether it is right is not known. A pass that used up the context on its way was cut: it is
    scored like any other that was.
    """
    error = next((generation.error for generation in generations if generation.error), None)
    if error is None:
        return {}
    if generations[0].error is None:
        return {"error": error}
    fields: dict[str, Any] = {"answer_status": "failed", "error": error}
    return fields | dict.fromkeys(UNSCORED) | {"valid_tag_structure": False}


def generations_of(fields: dict[str, Any], phases: Sequence[Phase]) -> list[Generation]:
    """The generations of a stored pass, as far as a later pass or a score needs them."""
    generations, at = [], 0
    ids = fields.get("token_ids") or []
    for phase in phases:
        begin, end = fields["segments"][phase.name]
        count = fields[f"tokens_{phase.name}"]
        generations.append(
            Generation(
                token_ids=ids[at : at + count],
                text=fields["output"][begin:end],
                tail=fields.get("tails", {}).get(phase.name, ""),
                finish_reason=fields[f"stop_reason_{phase.name}"],
                num_tokens=None if ids else count,
            )
        )
        at += count
    return generations
