"""What the store looks at of a row: its key, and some columns, read without parsing the rest."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import msgspec

from pipeline.store.files import Line, Row, decode
from pipeline.store.pass_names import PASS_NAMES


class Key(NamedTuple):
    """What names a row in its file."""

    example_id: str
    sample_idx: int


class PassHead(TypedDict, total=False):
    """What of a pass the store looks at."""

    cue_hash: str | None
    tokens_total: int


# What of a row the store looks at. The parser skips the rest, which is nearly all of it.
_HEAD: dict[str, Any] = {
    "example_id": str,
    "sample_idx": int,
    "fingerprint": str | None,
    "grader": str | None,
    "attempt": int | None,
    **{name: PassHead | None for name in PASS_NAMES},
}
_typed_dict: Any = TypedDict  # called with fields that a type checker cannot see
_DECODER: msgspec.json.Decoder[Row] = msgspec.json.Decoder(
    _typed_dict("RowHead", _HEAD, total=False)
)


def head_of(raw: bytes) -> Row | None:
    """The head of a line (see `_HEAD`); the whole object where a field has another type than ours.

    None for a line that is no JSON object.
    """
    try:
        if not raw.isascii():
            raw.decode()  # the parser does not look into text that it skips
        return _DECODER.decode(raw)
    except (ValueError, RecursionError):
        return decode(raw)


class HeadLine(NamedTuple):
    """A line of a file of rows: where it lies, its head, and whether its newline is written."""

    line: Line
    head: Row | None  # None: it is no row
    is_whole: bool


def read_heads(path: Path, start: int = 0) -> Iterator[HeadLine]:
    """The lines from an offset on.

    A last line without newline is passed over unless it is a row: its writer may be at it.
    """
    with path.open("rb") as file:
        file.seek(start)
        for raw in file:
            head, is_whole = head_of(raw), raw.endswith(b"\n")
            head = head if head is not None and is_keyed(head) else None
            if head is not None or is_whole:
                yield HeadLine(Line(start, len(raw)), head, is_whole)
            start += len(raw)


def key_of(row: Row) -> Key:
    """The key of a row."""
    return Key(row["example_id"], row["sample_idx"])


def is_keyed(row: Row) -> bool:
    """Whether a JSON object names a row."""
    return isinstance(row.get("example_id"), str) and isinstance(row.get("sample_idx"), int)


def num_tokens(row: Row) -> int:
    """Generated tokens of all passes, a `pass2` that repeats a lettered pass not counted twice."""
    repeated = "pass2" if row.get("pass2a") else None
    passes = [row[name] for name in PASS_NAMES if name != repeated and row.get(name)]
    return sum(
        whole_number(fields.get("tokens_total")) for fields in passes if isinstance(fields, dict)
    )


def whole_number(value: Any) -> int:
    """The value if it is a whole number, else 0: rows of any version are counted."""
    return value if isinstance(value, int) else 0
