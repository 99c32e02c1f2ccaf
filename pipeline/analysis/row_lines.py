"""What summaries read of a line of rows, decoded at the speed of the JSON parser."""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from pipeline.store.files import Row
from pipeline.store.pass_names import PASS_NAMES

# In lines: null is None, and what is absent is ABSENT where numbers are made of it at once.
Flag = bool | int | None
Number = float | None
Text = str | None
ABSENT = -1


class PassLine(msgspec.Struct, gc=False):
    """What summaries need of a pass object; everything else is skipped while parsing."""

    is_correct_pred: Flag = ABSENT
    improved_over_pass1: Flag = ABSENT
    valid_tag_structure: Flag = ABSENT
    has_reconsider_cue: Flag = ABSENT
    shift_in_reasoning_v1: Flag = ABSENT
    entropy: Number = ABSENT
    entropy_think: Number = ABSENT
    entropy_answer: Number = ABSENT
    soft_reward: Number = ABSENT
    soft_reward_blank: Number = msgspec.field(default=ABSENT, name="soft reward")
    tokens_total: Number = ABSENT
    tokens_think: Number = ABSENT
    tokens_answer: Number = ABSENT
    seconds: Number = ABSENT
    pred_answer: Text = None
    pred_answer_canon: Text = None
    answer_status: Text = None
    stop_reason_think: Text = None
    stop_reason_answer: Text = None
    stop_reason_output: Text = None
    finish_reason: Text = None
    cue: Text = None
    cue_hash: Text = None
    control: Flag = None


EMPTY = PassLine()
_ROW_FIELDS: list[tuple[str, Any, Any]] = [
    ("problem", Text, None),
    ("example_id", str | int | None, None),
    ("sample_idx", int | None, None),
    ("step", int | None, None),
    ("split", Text, None),
    ("task", Text, None),
    ("model", Text, None),
    ("temperature", Number, None),
    ("gold_answer_canon", Text, None),
    ("seed", int | None, None),
    ("output", Text, None),  # the legacy runner's rows are one pass without an object
    ("entropy", Number, None),
]
_FIELD_NAMES = [name for name, *_ in _ROW_FIELDS]
_NULL = msgspec.Raw(b"null")
Label = tuple[Any, ...]  # task, model, temperature, seed, grader, and what rows are grouped by


class LineDecoder:
    """Decodes lines; besides the usual fields it reads the columns `by` of rows or their metadata.

    Any JSON may stand in these and in `grader`: they are compared as they are written.
    """

    def __init__(self, by: Sequence[str]) -> None:
        self.by = by
        more = [name for name in by if name not in _FIELD_NAMES]
        raw = [(f"by{i}", msgspec.Raw, _raw_field(name)) for i, name in enumerate(more)]
        inner = msgspec.defstruct("Metadata", raw, gc=False)
        fields = [*_ROW_FIELDS, *((name, PassLine | None, None) for name in PASS_NAMES)]
        fields += [("grader", msgspec.Raw, _NULL), *raw]
        fields += [("metadata", inner | None, None)] if raw else []
        self.row: Any = msgspec.defstruct("RowLine", fields, gc=False)
        self.inner, self._raw = inner, {name: f"by{i}" for i, name in enumerate(more)}
        self._decoder = msgspec.json.Decoder(self.row)

    def decode(self, raw: memoryview) -> Any:
        """One line."""
        return self._decoder.decode(raw)

    def decode_all(self, block: bytes) -> list[Any]:
        """All lines of a block."""
        rows: list[Any] = self._decoder.decode_lines(block)
        return rows

    def lenient(self, row: Row) -> Any:
        """A row whose fields have other types than ours: what cannot be read counts as missing."""
        fields = {name: _cast(kind, row.get(name)) for name, kind, _ in _ROW_FIELDS}
        for name in PASS_NAMES:
            value = row.get(name)
            fields[name] = _lenient_pass(value) if isinstance(value, dict) else None
        fields["grader"] = _as_raw(row.get("grader"))
        fields |= {field: _as_raw(row.get(name)) for name, field in self._raw.items()}
        inner = row.get("metadata")
        if self._raw and isinstance(inner, dict):
            values = {field: _as_raw(inner.get(name)) for name, field in self._raw.items()}
            fields["metadata"] = self.inner(**values)
        return self.row(**fields)

    def groups(self, row: Any) -> Iterator[Any]:
        """The values of the columns `by`: JSON as bytes, or the value of a usual field."""
        for name in self.by:
            field = self._raw.get(name)
            if field is None:
                yield getattr(row, name)
                continue
            value = bytes(getattr(row, field))
            if value == b"null" and row.metadata is not None:
                value = bytes(getattr(row.metadata, field))
            yield value


def _raw_field(name: str) -> Any:
    return msgspec.field(default=_NULL, name=name)


def _as_raw(value: Any) -> Any:
    return _NULL if value is None else msgspec.Raw(msgspec.json.encode(value))


line_decoder = lru_cache(LineDecoder)


def _lenient_pass(value: dict[str, Any]) -> PassLine:
    known = [f for f in msgspec.structs.fields(PassLine) if f.encode_name in value]
    return PassLine(**{f.name: _cast(f.type, value[f.encode_name]) for f in known})


def _cast(kind: Any, value: Any) -> Any:
    if value is None or isinstance(value, list | dict):
        return None
    if kind == Text or kind == str | int | None:
        return str(value)
    try:
        number = float(value)
    except ValueError:
        return None
    if not math.isfinite(number):
        return None
    return number if kind == Number else int(number)
