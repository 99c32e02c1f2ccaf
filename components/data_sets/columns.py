"""Takes fields out of a record by the column names that `task.columns` lists."""

import math
from collections.abc import Mapping, Sequence
from datetime import date, time
from decimal import Decimal
from typing import Any

from components.data_sets.records import DataError, Record
from pipeline.spec import SpecError, require


def pick(record: Record, names: Sequence[str]) -> Any:
    """The value of the first of the columns `names` that is there and not null, or None.

    0 and false count as values. A name with dots goes into nested mappings; a column whose own name
    holds the dots comes first.
    """
    for name in names:
        value = _lookup(record.values, name)
        if value is not None:
            return value
    return None


def need_text(record: Record, columns: Mapping[str, Any], field: str, numbers: bool = False) -> str:
    """The text in the first present column that `task.columns` lists for `field`.

    Args:
        record: the row.
        columns: the `task.columns` mapping.
        field: a key of it.
        numbers: also take int and float, written as Python writes them.

    Raises:
        DataError: no such column, null, blank, or another type.
    """
    key = f"task.columns.{field}"
    value = need(record, columns, field)
    if numbers and isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise DataError(f"{record.where}: the column of {key} must be finite, got {value!r}")
        return str(value)
    if not isinstance(value, str):
        kind = "text or a number" if numbers else "text"
        raise DataError(
            f"{record.where}: the column of {key} must hold {kind}, "
            f"got {value!r} ({type(value).__name__})"
        )
    if not value.strip():
        raise DataError(f"{record.where}: the column of {key} must not be blank, got {value!r}")
    return encodable(record, key, value)


def need(record: Record, columns: Mapping[str, Any], field: str) -> Any:
    """What the first present column of `field` holds; DataError where none is, or all are null."""
    names = names_of(columns, field)
    if not names:
        raise SpecError(f"task.columns.{field} must name a column, got null")
    value = pick(record, names)
    if value is None:
        raise DataError(
            f"{record.where}: {_absent(record, names)}; "
            f"set task.columns.{field} to the right column"
        )
    return value


def optional(record: Record, columns: Mapping[str, Any], field: str) -> Any:
    """What the first present column of `field` holds, or None."""
    return pick(record, names_of(columns, field))


def names_of(columns: Mapping[str, Any], field: str) -> list[str]:
    """The candidate columns of `field`, for which `task.columns` holds a name, names, or null."""
    value = columns.get(field)
    names = [] if value is None else [value] if isinstance(value, str) else value
    named = isinstance(names, Sequence) and all(isinstance(name, str) for name in names)
    require(named, f"task.columns.{field}", "be a column's name or a list of names", value)
    return list(names)


def unmapped(record: Record, columns: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that `task.columns.keep` names, or else all that no field was read from.

    They are made fit for JSON: dates become text, and half a surrogate pair a question mark. Left
    out are nulls, numbers that are not finite, bytes, and objects such as images.

    Raises:
        DataError: `keep` names a column that the record lacks.
    """
    if columns.get("keep") is not None:
        names = names_of(columns, "keep")
        for name in names:
            if not has(record.values, name):
                raise DataError(
                    f"{record.where}: {_absent(record, [name])}; mend task.columns.keep"
                )
        kept = {name: _lookup(record.values, name) for name in names}
    else:
        fields = [field for field in columns if field != "keep"]
        mapped = {_first(record, names_of(columns, field)) for field in fields}
        kept = {str(name): value for name, value in record.values.items() if name not in mapped}
    plain = {_text(name): _plain(value) for name, value in kept.items()}
    return {name: value for name, value in plain.items() if value is not None}


def _first(record: Record, names: Sequence[str]) -> str | None:
    return next((name for name in names if _lookup(record.values, name) is not None), None)


def _text(text: str) -> str:
    return text.encode(errors="replace").decode()


def _plain(value: Any) -> Any:
    """A value as JSON can hold it, None where it cannot."""
    if isinstance(value, str):
        return _text(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {_text(str(name)): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, date | time | Decimal):
        return str(value)
    return None


def check_columns(columns: Mapping[str, Any], fields: Sequence[str]) -> None:
    """Refuse a key of `task.columns` that the task does not know."""
    require(isinstance(columns, Mapping), "task.columns", "be a mapping to columns", columns)
    allowed = (*fields, "keep")
    for key in columns:
        if key not in allowed:
            raise SpecError(f"task.columns has no key {key!r}; it takes {', '.join(allowed)}")


def own_id(record: Record, columns: Mapping[str, Any]) -> str:
    """The data set's own id as text, or the empty string."""
    value = optional(record, columns, "id")
    if isinstance(value, str | int):
        return encodable(record, "task.columns.id", str(value))
    if value is None:
        return ""
    raise DataError(
        f"{record.where}: the column of task.columns.id must hold text or int, got {value!r}"
    )


def encodable(record: Record, key: str, text: str) -> str:
    """Text as it is. DataError for half a surrogate pair, which no tokenizer and no file takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start]
        raise DataError(
            f"{record.where}: the column of {key} holds half a surrogate pair, {half!r}, "
            "which is no text; mend or remove the line"
        ) from error
    return text


def _lookup(values: Mapping[str, Any], name: str) -> Any:
    if name in values:
        return values[name]
    head, dot, rest = name.partition(".")
    inner = values.get(head)
    return _lookup(inner, rest) if dot and isinstance(inner, Mapping) else None


def has(values: Mapping[str, Any], name: str) -> bool:
    """Whether there is a column `name`, whose dots go into nested mappings; it may be null."""
    if name in values:
        return True
    head, dot, rest = name.partition(".")
    inner = values.get(head)
    return bool(dot) and isinstance(inner, Mapping) and has(inner, rest)


def _absent(record: Record, names: Sequence[str]) -> str:
    there = [name for name in names if has(record.values, name)]
    if there:
        return f"column {there[0]!r} is null"
    wanted = " or ".join(repr(name) for name in names)
    return f"no column {wanted} (there are {', '.join(map(str, record.values))})"
