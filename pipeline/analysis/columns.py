"""Lines of rows -> columns of numbers, at the speed of the JSON parser; long arrays are skipped."""

import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from operator import attrgetter
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import xxhash

from pipeline.analysis.row_files import parse
from pipeline.analysis.row_lines import (
    ABSENT,
    EMPTY,
    Flag,
    Label,
    LineDecoder,
    PassLine,
    Text,
    line_decoder,
)
from pipeline.protocols import TRUNCATED
from pipeline.store.pass_names import PASS_NAMES

Array = np.ndarray[Any, Any]
SECOND = ("pass2", "pass2c", "pass2b", "pass2a")  # which of them the table by step calls pass 2
CAPPED = (*TRUNCATED, "length")  # `length` is in rows of other programs
UNANSWERED = ("no_answer", "truncated")


# Fields of a pass -> column names. float32 holds flags and counts exactly; readers of a mean widen.
SMALL = {
    "is_correct_pred": "correct",
    "improved_over_pass1": "improved",
    "valid_tag_structure": "tags",
    "has_reconsider_cue": "marked",
    "shift_in_reasoning_v1": "judged_shift",
    "tokens_total": "tokens",
    "tokens_think": "tokens_think",
    "tokens_answer": "tokens_answer",
}
WIDE = {
    "entropy": "entropy",
    "entropy_think": "entropy_think",
    "entropy_answer": "entropy_answer",
    "soft_reward": "soft",
    "soft_reward_blank": "soft_blank",
    "seconds": "seconds",
}
_USUAL = attrgetter("pass1", "pass2", "pass2a", "pass2b", "pass2c")
_ROW_WORDS = attrgetter("task", "model", "temperature", "seed", "step", "split")
_REASONS = ("stop_reason_think", "stop_reason_answer", "stop_reason_output", "finish_reason")
_PASS_WORDS = attrgetter("cue", "control", "answer_status", *_REASONS)
Judge = Callable[[PassLine, str | None], Flag]


@dataclass(slots=True)
class Chunk:
    """Columns of some lines.

    The code columns `label` and `words` point into `labels` (task, model, temperature, seed,
    grader, and the columns that rows are grouped by) and `words` (cue, control, stop reason of the
    think phase and of the answer).
    """

    rows: dict[str, Array]
    passes: dict[str, Array]
    labels: list[Label]
    words: list[tuple[Text, bool, Text, Text]]
    broken: int


@dataclass(frozen=True, slots=True)
class Span:
    """The lines of a file that begin at `start` or later and before `end`."""

    file: int
    path: Path
    start: int
    end: int


class Codes(dict[Any, int]):
    """Numbers values in the order in which they come."""

    def __missing__(self, value: Any) -> int:
        """The next number."""
        self[value] = code = len(self)
        return code


def read_span(span: Span, judge: Judge | None = None, by: tuple[str, ...] = ()) -> Chunk:
    """Parse a span. `judge` replaces a pass's verdict, given the pass and the canonical gold.

    `by` names further columns of rows, or of their `metadata`, to be read.
    """
    collects = gc.isenabled()
    gc.disable()  # a million small objects and no cycle among them
    try:
        return _read_span(span, judge, line_decoder(by))
    finally:
        if collects:
            gc.enable()


def _read_span(span: Span, judge: Judge | None, lines: LineDecoder) -> Chunk:
    block, start = _block(span)
    ends = _line_ends(block)
    starts = np.concatenate(([0], ends[:-1])) if len(ends) else ends
    decoded = _decode(block, starts, ends, lines)
    lost = [index for index, row in enumerate(decoded) if row is None]
    if lost:
        decoded = [row for row in decoded if row is not None]
    chunk = _columns(decoded, judge, lines)
    chunk.broken = sum(bool(block[starts[index] : ends[index]].strip()) for index in lost)
    starts, ends = np.delete(starts, lost), np.delete(ends, lost)
    chunk.rows["file"] = np.full(len(starts), span.file, np.int32)
    chunk.rows["offset"] = (starts + start).astype(np.int64)
    chunk.rows["length"] = (ends - starts).astype(np.int32)
    return chunk


def _line_ends(block: bytes) -> Array:
    """Offsets just after each line; the last may lack its newline."""
    ends = []
    at = block.find(b"\n") + 1
    while at:
        ends.append(at)
        at = block.find(b"\n", at) + 1
    if block and not block.endswith(b"\n"):
        ends.append(len(block))
    return np.array(ends, np.int64)


def _block(span: Span) -> tuple[bytes, int]:
    """The span's whole lines and where they begin."""
    with span.path.open("rb") as file:
        start, end = (_line_start(file, at) for at in (span.start, span.end))
        file.seek(start)
        return file.read(end - start), start


def _line_start(file: IO[bytes], at: int) -> int:
    """Where the first line begins that does so at `at` or later."""
    if at == 0:
        return 0
    file.seek(at - 1)
    file.readline()
    return file.tell()


def _decode(block: bytes, starts: Array, ends: Array, lines: LineDecoder) -> list[Any]:
    """One RowLine per line; None for a line that is no row."""
    try:
        rows = lines.decode_all(block)
        if len(rows) == len(ends):
            return rows
    except msgspec.DecodeError:  # also a field of another type
        pass
    view = memoryview(block)
    return [_decode_one(view[a:b], lines) for a, b in zip(starts, ends, strict=True)]


def _decode_one(raw: memoryview, lines: LineDecoder) -> Any:
    try:
        return lines.decode(raw)
    except msgspec.DecodeError:
        row = parse(bytes(raw))
        return None if row is None else lines.lenient(row)


def _columns(found: Sequence[Any], judge: Judge | None, lines: LineDecoder) -> Chunk:
    rows, labels = _row_columns(found, lines)
    owners, names, chosen, passes = _passes(found)
    recorded: dict[str, Array] = {}
    if judge is not None:
        recorded = {"recorded": _field(passes, "is_correct_pred", np.float32)}
        for owner, fields in zip(owners, passes, strict=True):
            fields.is_correct_pred = judge(fields, found[owner].gold_answer_canon)
    words, code = _coded(zip(names, map(_PASS_WORDS, passes), strict=True), len(passes))
    columns = _numbers(passes) | recorded | _answers(passes, code, [w for _, w in words])
    columns |= {
        "row": np.array(owners, np.int32),
        "pass": np.array(names, np.int8),
        "second": np.array(chosen, bool),
        "words": code,
    }
    return Chunk(rows, columns, labels, [_words(*entry) for entry in words], 0)


def _coded(values: Iterable[Any], count: int) -> tuple[list[Any], Array]:
    """The distinct values, in the order in which they come, and which of them each one is."""
    codes = Codes()
    index = np.fromiter(map(codes.__getitem__, values), np.int32, count)
    return list(codes), index


def _words(name: int, words: Sequence[Any]) -> tuple[Text, bool, Text, Text]:
    cue, control, _, think, answer, *_ = words
    named = (cue or PASS_NAMES[name], bool(control)) if name else (None, False)
    return *named, think, answer


def _row_columns(found: Sequence[Any], lines: LineDecoder) -> tuple[dict[str, Array], list[Label]]:
    problem = _hashes([row.problem or "" for row in found])
    named = [row.example_id for row in found]
    example = _hashes(["" if name is None else str(name) for name in named])
    example = np.where([name is None for name in named], problem, example) if found else example
    groups: Iterable[Any] = map(tuple, map(lines.groups, found)) if lines.by else repeat(())
    graders = map(bytes, map(attrgetter("grader"), found))
    words, label = _coded(zip(map(_ROW_WORDS, found), graders, groups, strict=False), len(found))
    steps = np.array([ABSENT if w[4] is None else w[4] for w, _, _ in words], np.int32)
    split = _hashes([w[5] or "" for w, _, _ in words])
    sample = np.array([ABSENT if row.sample_idx is None else row.sample_idx for row in found], int)
    step = steps[label] if found else np.empty(0, np.int32)
    key = example + split[label] if found else example
    return {
        "problem": problem,
        "example": example,
        "key": mixed(mixed(key) + sample.astype(np.uint64)) + step.astype(np.uint64),
        "sample": sample.astype(np.int32),
        "step": step,
        "label": label,
    }, [(*w[:4], grader, *values) for w, grader, values in words]


def mixed(values: Array) -> Array:
    """Spread 64-bit numbers evenly (the finalizer of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = values ^ (values >> np.uint64(31))
    return mixed


def _hashes(texts: Sequence[str]) -> Array:
    """A 64-bit hash of each text that is the same in every process; texts repeat a lot."""
    unique, index = _coded(texts, len(texts))
    hashes = [xxhash.xxh3_64_intdigest(t.encode("utf-8", "surrogatepass")) for t in unique]
    return np.array(hashes, np.uint64)[index] if texts else np.empty(0, np.uint64)


def _passes(found: Sequence[Any]) -> tuple[list[int], list[int], list[bool], list[PassLine]]:
    """Every pass once: owner row, number in `PASS_NAMES`, whether the table by step takes it."""
    entries: list[tuple[int, int, bool, PassLine]] = []
    for owner, (first, last, a, b, c) in enumerate(map(_USUAL, found)):
        if first is not None and first != EMPTY:
            entries.append((owner, 0, False, first))
        elif found[owner].output is not None:
            entries.append((owner, 0, False, PassLine(entropy=found[owner].entropy)))
        if a is None and b is None and c is None:
            if last is not None and last != EMPTY:
                entries.append((owner, 1, True, last))
        else:
            entries += ((owner, *entry) for entry in _lettered(found[owner]))
    if not entries:
        return [], [], [], []
    owners, names, chosen, passes = zip(*entries, strict=True)
    return list(owners), list(names), list(chosen), list(passes)


def _lettered(row: Any) -> list[tuple[int, bool, PassLine]]:
    """The reconsiderations of a row that has several."""
    last = row.pass2 if row.pass2 != EMPTY else None
    there = ((number, getattr(row, PASS_NAMES[number])) for number in range(2, len(PASS_NAMES)))
    found = {number: fields for number, fields in there if fields is not None and fields != EMPTY}
    if last is None:
        wanted = map(PASS_NAMES.index, SECOND)
        taken = next((number for number in wanted if number in found), None)
    else:
        taken = max((n for n, fields in found.items() if _repeats(last, fields)), default=1)
    if taken == 1 and last is not None:
        found[1] = last
    return [(number, number == taken, fields) for number, fields in found.items()]


def _repeats(last: PassLine, lettered: PassLine) -> bool:
    """Whether `pass2` is a lettered pass again: by its cue, else by being the same object."""
    if last.cue_hash is not None and lettered.cue_hash is not None:
        return last.cue_hash == lettered.cue_hash
    return last == lettered


def _numbers(passes: Sequence[PassLine]) -> dict[str, Array]:
    """Flags are 0, 1 or NaN; what is missing is NaN."""
    columns: dict[str, Array] = {}
    for names, kind in ((SMALL, np.float32), (WIDE, np.float64)):
        columns |= {name: _field(passes, field, kind) for field, name in names.items()}
    blank = columns.pop("soft_blank")
    columns["soft"] = np.where(np.isnan(columns["soft"]), blank, columns["soft"])
    return columns


def _field(passes: Sequence[PassLine], field: str, kind: Any) -> Array:
    values = _number(partial(map, attrgetter(field), passes), len(passes), kind)
    values[values == ABSENT] = np.nan
    return values


def _number(values: Callable[[], Iterable[Any]], count: int, kind: Any) -> Array:
    """An array of numbers; None becomes NaN, which makes it slower."""
    try:
        return np.fromiter(values(), kind, count)
    except TypeError:
        return np.array(list(values()), kind)


def _answers(passes: Sequence[PassLine], code: Array, words: Sequence[Any]) -> dict[str, Array]:
    """What was answered (a hash), whether anything was, and whether a phase met its cap."""
    truncated = np.array([any(reason in CAPPED for reason in w[3:]) for w in words], np.float32)
    unanswered = np.array([w[2] in UNANSWERED for w in words], bool)
    silent = np.array([not (p.pred_answer or p.pred_answer_canon) for p in passes], bool)
    return {
        "answer": _hashes([p.pred_answer_canon or p.pred_answer or "" for p in passes]),
        "no_answer": (unanswered[code] | silent).astype(np.float32),
        "truncated": truncated[code],
    }
