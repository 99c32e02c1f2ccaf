"""Rows as flat columns of one type each: what Parquet, CSV and data frames can hold."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from pipeline.store.files import Row

Kind = str
KINDS = {bool: "bool", int: "int", float: "float", str: "text"}
_HALF = re.compile("[\ud800-\udfff]")


def flat(row: Row) -> Row:
    """A row whose passes are columns such as `pass1.entropy`, its metadata `metadata.subject`."""
    columns: Row = {}
    for name, value in row.items():
        if name.startswith(("pass", "metadata")) and isinstance(value, dict):
            columns |= {f"{name}.{field}": inner for field, inner in value.items()}
        elif not (name.startswith("pass") and value is None):
            columns[name] = value
    return columns


def in_utf8(value: Any) -> Any:
    """The value with U+FFFD for each half of a surrogate pair: JSON has them, UTF-8 has not."""
    if isinstance(value, str):
        return value if value.isascii() else _HALF.sub("\ufffd", value)
    if isinstance(value, dict):
        return {in_utf8(name): in_utf8(inner) for name, inner in value.items()}
    return [in_utf8(item) for item in value] if isinstance(value, list) else value


def kind_of(value: Any) -> Kind | None:
    """`bool int float text`, a list of one of them, or `json` for anything else; None for null."""
    if value is None:
        return None
    if isinstance(value, list):
        inner = {KINDS.get(type(item), "json") for item in value}
        merged = merge_kinds(inner)
        return "list" if merged is None else "json" if merged == "json" else f"list {merged}"
    return KINDS.get(type(value), "json")


def merge_kinds(kinds: Iterable[Kind | None]) -> Kind | None:
    """The kind that holds all of these: integers become floats, what does not fit becomes JSON."""
    found = {kind for kind in kinds if kind is not None}
    if "list" in found and any(kind.startswith("list ") for kind in found):
        found.discard("list")  # an empty list fits any list
    for prefix in ("", "list "):
        if found == {f"{prefix}int", f"{prefix}float"}:
            return f"{prefix}float"
    return found.pop() if len(found) == 1 else "json" if found else None


def column_kinds(rows: Iterable[Row]) -> dict[str, Kind]:
    """The kind of every column over all rows, in the order in which they come; text if all null."""
    kinds: dict[str, Kind | None] = {}
    for row in rows:
        for name, value in row.items():
            kinds[name] = merge_kinds((kinds.get(name), kind_of(value)))
    return {name: kind or "text" for name, kind in kinds.items()}


def fitted(row: Row, kinds: dict[str, Kind]) -> Row:
    """A row with every column, its values as the columns' kinds want them."""
    return {name: _fit(row.get(name), kind) for name, kind in kinds.items()}


def _fit(value: Any, kind: Kind) -> Any:
    if value is None or kind not in ("json", "float", "list float"):
        return value
    if kind == "json":
        return json.dumps(value, ensure_ascii=False)
    return float(value) if kind == "float" else [float(item) for item in value]


def batches(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    """Rows in lists of `size`."""
    batch: list[Row] = []
    for row in rows:
        batch.append(row)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
