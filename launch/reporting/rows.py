"""What the report page shows of one row: a line of its index, its texts, its token series."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any

from pipeline.run.markers import marker_places
from pipeline.run.pass_fields import TAGS, reasoning_span
from pipeline.store.files import Row
from pipeline.store.pass_names import distinct_passes

Fields = Mapping[str, Any]
TITLE_CHARS = 160
# Shown in places of their own, or too long for a table of fields.
SHOWN_ELSEWHERE = ("output", "prev_output", "reconsider_context", "reconsider_excerpt", "cue_text")
BOARD = re.compile(r"\b[oxA-Z]{9,}\b")


@dataclass(frozen=True, slots=True)
class Packed:
    """A row in three pieces, from the one that is always loaded to the one that seldom is."""

    line: dict[str, Any]
    texts: dict[str, Any]
    tokens: list[dict[str, Any] | None]


def pack(row: Row) -> Packed:
    """Pack one row. Fields that are missing stay missing; none is made up."""
    passes = list(distinct_passes(row).items())
    question = str(row.get("problem") or "")
    line = {
        "task": row.get("task"),
        "step": row.get("step"),
        "temperature": row.get("temperature"),
        "example": str(row.get("example_id") or question[:TITLE_CHARS]),
        "sample": row.get("sample_idx"),
        "title": " ".join(question.split())[:TITLE_CHARS],
        "passes": [_line(name, fields) for name, fields in passes],
    }
    texts = {
        "problem": question,
        "gold": row.get("gold_answer"),
        "golds": row.get("gold_answer_canon_set"),
        "board": board_of(row, passes),
        "fields": _scalars(row, ("problem", "gold_answer", "board", "output")),
        "passes": [_texts(name, fields, passes[0][1]) for name, fields in passes],
    }
    return Packed(line, texts, [_tokens(fields) for _, fields in passes])


def _line(name: str, fields: Fields) -> dict[str, Any]:
    """What lists and filters need of a pass."""
    return {
        "cue": None if name == "pass1" else label(name, fields),
        "right": fields.get("is_correct_pred"),
        "entropy": rounded(fields.get("entropy")),
        "tokens": fields.get("tokens_total"),
        "answer": str(fields.get("pred_answer") or "")[:TITLE_CHARS],
    }


def label(name: str, fields: Fields) -> str:
    """What a later pass is called: its cue's name, else its own in the row."""
    return str(fields.get("cue") or name)


def rounded(value: Any) -> float | None:
    """A number as short as the page needs it."""
    return round(float(value), 4) if isinstance(value, int | float) else None


def _texts(name: str, fields: Fields, first: Fields) -> dict[str, Any]:
    """A pass's output, where its parts, its cue and its markers lie in it, and its other fields."""
    output = str(fields.get("output") or "")
    segments: dict[str, Sequence[int]] = fields.get("segments") or {}
    start, end = reasoning_span(output, segments)
    cue = cue_span(fields, segments, start)
    return {
        "name": name,
        "output": output,
        "shown": _shown(fields, first),
        "answer_at": answer_start(output, end),
        "tags": [
            [*match.span(), is_forced(match.span(), segments)] for match in TAGS.finditer(output)
        ],
        "has_think": "think" in segments,
        "cue_text": fields.get("cue_text"),
        "cue": cue,
        "marks": list(markers(output[start:end], start, cue[1] - start if cue else 0)),
        "fields": _scalars(fields, SHOWN_ELSEWHERE),
    }


def is_forced(span: tuple[int, int], segments: Mapping[str, Sequence[int]]) -> bool:
    """Whether the pipeline wrote a tag: it lies in no segment of what the model generated."""
    inside = any(begin <= span[0] and span[1] <= end for begin, end in segments.values())
    return bool(segments) and not inside


def _shown(fields: Fields, first: Fields) -> str | None:
    """The pass-1 text that a later pass was shown, where it is not this row's own."""
    text = fields.get("prev_output")
    return str(text) if text and text != first.get("output") else None


def board_of(row: Row, passes: Sequence[tuple[str, Fields]]) -> str | None:
    """The row's board; in the original's rows the last one that its messages hold."""
    if row.get("board") or not any("is_valid_pred" in fields for _, fields in passes):
        return str(row["board"]) if row.get("board") else None
    for text in reversed(BOARD.findall(str(row.get("problem") or ""))):
        if isqrt(len(text)) ** 2 == len(text):
            return str(text)
    return None


def answer_start(output: str, think_end: int) -> int | None:
    """Where the answer block opens; None without one."""
    at = output.lower().find("<answer>", think_end)
    return at if at >= 0 else None


def cue_span(fields: Fields, segments: Mapping[str, Sequence[int]], start: int) -> list[int] | None:
    """Where the injected cue stands at the start of the reasoning."""
    text = str(fields.get("cue_text") or "")
    if not text:
        return None
    if "think" in segments and fields.get("cue_prefilled", True):
        return [start, max(start, segments["think"][0])]
    found = str(fields.get("output") or "").startswith(text, start)
    return [start, start + len(text)] if found else None


def markers(think: str, base: int, skip: int) -> Iterator[list[Any]]:
    """`[name, begin, end]` of the first place of each reconsideration marker, in the output."""
    for name, begin, end in marker_places(think, max(skip, 0)):
        yield [name, base + begin, base + end]


def _scalars(fields: Fields, without: Sequence[str]) -> dict[str, Any]:
    """Fields that fit a table: everything but passes, arrays of numbers and long texts."""
    names = [n for n in fields if n not in without and not re.fullmatch("pass[12][a-z]?", n)]
    return {name: fields[name] for name in names if not _numbers(fields[name])}


def _numbers(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 8 and not isinstance(value[0], str)


def _tokens(fields: Fields) -> dict[str, Any] | None:
    """Token series in thousandths (nats), and where each token ends; None where none are kept."""
    ends, entropies = fields.get("token_ends"), fields.get("entropies")
    segments = fields.get("segments") or {}
    if not ends or not entropies or len(ends) != len(entropies):
        return None
    counts = [fields.get(f"tokens_{name}", len(ends)) for name in segments]
    return {
        "ends": [b - a for a, b in zip([0, *ends], ends, strict=False)],
        "entropy": thousandths(entropies),
        "logprob": thousandths(fields.get("logprobs") or []),
        "phases": [[n, span[0]] for n, span in zip(counts, segments.values(), strict=True)],
    }


def thousandths(values: Sequence[float | None]) -> list[int | None]:
    """Numbers as integers of a thousandth; what is missing or not finite stays missing."""
    return [round(v * 1000) if v is not None and math.isfinite(v) else None for v in values]
