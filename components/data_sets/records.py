"""Reads a data set (a file, a hub id or an embedded one) into records that say where they stood."""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

from pipeline.protocols import Example
from pipeline.spec import SpecError, digest, refuse_empty, require


class DataError(SpecError):
    """The data set breaks a rule; the message names file and line (or the hub id and row)."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a data set lies. At most one of `path` and `hub`; neither means the embedded set.

    `config` is the hub data set's configuration; `split` and `revision` matter for hub ids only.
    """

    path: str | None = None
    hub: str | tuple[str, ...] | None = None
    config: str | None = None
    split: str = "test"
    revision: str | None = None

    def __post_init__(self) -> None:
        """Refuse an empty text, which would name the working folder. Raises SpecError."""
        refuse_empty(self, "task.data")


@dataclass(frozen=True, slots=True)
class Record:
    """One row as it came, and where it stands (`file:line`, or `hub-id[split]:row`)."""

    values: Mapping[str, Any]
    where: str


def source(data: Mapping[str, Any], mirrors: Mapping[str, Sequence[str]] | None = None) -> Source:
    """Check the `task.data` mapping; a hub name found in `mirrors` (any case) stands for its list.

    Raises:
        SpecError: an unknown key, or both `path` and `hub`.
    """
    require(isinstance(data, Mapping), "task.data", "be a mapping with path or hub", data)
    known = [f.name for f in fields(Source)]
    for key in data:
        if key not in known:
            raise SpecError(f"task.data has no key {key!r}; it takes {', '.join(known)}")
    values = dict(data)
    hub = values.get("hub")
    if isinstance(hub, str):
        hub = _mirrors_of(hub, mirrors or {})
    if hub is not None and not isinstance(hub, str):
        hub = tuple(hub)
    if values.get("path") is not None and hub is not None:
        raise SpecError(f"task.data must name a path or a hub id, not both: got {dict(data)!r}")
    return Source(**{**values, "hub": hub})


def load(where: Source, embedded: str | None = None) -> list[Record]:
    """Read all records, in the data set's order.

    Args:
        where: what to read.
        embedded: file name under `components/tasks/data`, read when `where` names nothing.

    Raises:
        DataError: nothing to read, an unreadable file, a broken line, or no record at all.
    """
    if where.hub is not None:
        ids = (where.hub,) if isinstance(where.hub, str) else where.hub
        records = _from_hub(ids, where)
        label = f"task.data.hub={where.hub}"
    elif where.path is not None:
        records = read_file(where.path, "task.data.path")
        label = f"task.data.path={where.path}"
    elif embedded is not None:
        text = resources.files("components.tasks").joinpath("data", embedded).read_text("utf-8")
        records = list(_json_lines(text.splitlines(), embedded))
        label = embedded
    else:
        raise DataError(
            "task.data must name a path or a hub id; this task has no embedded data set"
        )
    if not records:
        raise DataError(f"{label} holds no record; give a data set with at least one row")
    return records


def examples(drafts: Sequence[Example]) -> list[Example]:
    """Give every draft a unique id: its own, else a hash of question and target.

    Later examples with the same id get `#2`, `#3` and so on.
    """
    seen: set[str] = set()
    result = []
    for draft in drafts:
        base = draft.id or digest([draft.question, _plain(draft.target)])[:16]
        name, count = base, 1
        while name in seen:
            count += 1
            name = f"{base}#{count}"
        seen.add(name)
        result.append(Example(name, draft.question, draft.target, draft.metadata))
    return result


def _mirrors_of(hub: str, mirrors: Mapping[str, Sequence[str]]) -> str | tuple[str, ...]:
    for name, ids in mirrors.items():
        if name.lower() == hub.lower():
            return tuple(ids)
    return hub


def read_file(name: str, key: str) -> list[Record]:
    """All records of a file; `key` is the setting or argument that names it, for errors.

    Raises:
        DataError: no file, a kind that is not read, or a broken line.
    """
    path = Path(name)
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{key} must end in {', '.join(_READERS)}, got {name!r}")
    if not path.is_file():
        raise DataError(f"{key} must name a file, and there is none at {name!r}")
    try:
        return list(reader(path))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{key}={name} cannot be read: {error}") from error


def _jsonl(path: Path) -> Iterator[Record]:
    with path.open(encoding="utf-8-sig") as lines:
        yield from _json_lines(lines, str(path))


def _text(path: Path) -> Iterator[Record]:
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield Record({"text": line.rstrip("\r\n")}, f"{path}:{number}")


def _json_lines(lines: Iterable[str], name: str) -> Iterator[Record]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{name}:{number}"
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:  # also a number or a nesting without end
            raise DataError(
                f"{where}: not a JSON object on one line ({error}); mend or remove it"
            ) from error
        if not isinstance(values, dict):
            kind = type(values).__name__
            raise DataError(f"{where}: must be a JSON object, one on each line, got {kind}")
        yield Record(values, where)


def _csv(path: Path) -> Iterator[Record]:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines, strict=True)
        try:
            for values in reader:
                where = f"{path}:{reader.line_num}"
                if None in values or None in values.values():
                    raise DataError(f"{where}: has another number of fields than the header line")
                yield Record({k: v if v != "" else None for k, v in values.items()}, where)
        except csv.Error as error:
            raise DataError(f"{path}:{reader.line_num}: not CSV ({error})") from error


def _parquet(path: Path) -> Iterator[Record]:
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.read_table(path)
    except pyarrow.ArrowInvalid as error:
        raise OSError(f"not a Parquet file ({error})") from error  # `read_file` names it
    for number, values in enumerate(table.to_pylist(), start=1):
        yield Record(values, f"{path}:{number}")


_READERS: dict[str, Callable[[Path], Iterator[Record]]] = {
    ".jsonl": _jsonl,
    ".json": _jsonl,
    ".ndjson": _jsonl,
    ".csv": _csv,
    ".parquet": _parquet,
    ".txt": _text,
}


def _from_hub(ids: Sequence[str], where: Source) -> list[Record]:
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError
    from huggingface_hub.errors import HfHubHTTPError

    reasons = []
    for hub in ids:
        try:
            rows = load_dataset(hub, where.config, split=where.split, revision=where.revision)
        except (DatasetsError, HfHubHTTPError, OSError, ValueError) as error:
            reasons.append(f"{hub}: {type(error).__name__}: {error}")
            continue
        return [Record(row, f"{hub}[{where.split}]:{i}") for i, row in enumerate(rows, start=1)]
    raise DataError(
        "task.data.hub could not be loaded; give task.data.path=FILE.jsonl instead, or check "
        f"id, split={where.split!r} and the network. Tried " + "; ".join(reasons)
    )


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))
