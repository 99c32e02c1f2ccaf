"""run.json as it was stored: read, and refused where it is that of another spec or version."""

import glob
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from pipeline.spec import SpecError

# What a version of the product, and no user, may have changed in a fingerprint.
CHANGED_BY_VERSIONS = ("row_version", "backend")


class _Attempt(msgspec.Struct):
    """What is read of an attempt, as it is checked; more stands there."""

    attempt: int
    status: str
    rows: int = 0
    tokens: int = 0
    seconds: float = 0.0


_TYPES: dict[str, Any] = {
    "attempts": list[_Attempt],
    "attempt": int,
    "status": str,
    "fingerprint": str,
    "identity": dict[str, Any],
    "spec": dict[str, Any],
    "overrides": list[str],
}


def read_record(path: Path, *keys: str) -> dict[str, Any]:
    """A run.json with its attempts and `keys`. Raises SpecError where it is torn or lacks them."""
    return _read(path, (*keys, "attempts"))


def _read(path: Path, keys: Sequence[str]) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        problem = ", ".join(f"no {key!r}" for key in keys if key not in record)
        for key in keys if not problem else ():
            problem = problem or _problem_of(key, record[key])
    except (ValueError, TypeError, RecursionError) as error:
        problem = str(error)
    if problem or not isinstance(record, dict):
        raise SpecError(
            f"{path} is no record of a run ({problem or 'another kind of JSON'}); restore it, "
            "or move it away and start again: rows and journal stay and are used"
        )
    return record


def _problem_of(key: str, value: object) -> str:
    try:
        msgspec.convert(value, _TYPES.get(key, Any))
    except msgspec.ValidationError as error:
        return f"{key!r}: {error}"
    return ""


def attempts_of(folder: Path) -> list[dict[str, Any]]:
    """Every attempt on record in a run folder, in order, those of several writers among them."""
    path = folder / "run.json"
    folded = read_record(path)["attempts"] if path.exists() else []
    by_number = {attempt["attempt"]: attempt for attempt in [*folded, *_own_files(folder)]}
    return [by_number[number] for number in sorted(by_number)]


def _own_files(folder: Path) -> Iterator[dict[str, Any]]:
    for file in folder.glob("attempt-*.json"):
        with suppress(FileNotFoundError):  # it is in run.json by now
            yield _read(file, ("attempt", "status"))


def refuse_other_spec(folder: Path, facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """The run.json of a folder; None where there is none.

    Raises:
        SpecError: it is that of another spec, or version, than `facts` are of.
    """
    path = folder / "run.json"
    if not path.exists():
        refuse_earlier_versions(folder, facts["identity"])
        return None
    stored = read_record(path, "fingerprint", "identity")
    if stored["fingerprint"] != facts["fingerprint"]:
        refuse_other_version(folder, stored["identity"], facts["identity"])
        changed = differing(stored["identity"], facts["identity"])
        changed = changed or "its fingerprint alone, which was edited"
        raise SpecError(
            f"{folder} holds rows of another spec, which differs in {changed}; "
            "choose another run.dir or run.name, or restore these values"
        )
    return stored


def refuse_earlier_versions(folder: Path, identity: dict[str, Any]) -> None:
    """Refuse to begin anew what an earlier version of the product began beside this folder.

    The fingerprint is part of a folder's name, so such rows lie in another folder; whoever types
    the same command expects them to be used.

    Raises:
        SpecError: a run differs from this one in nothing but what versions changed.
    """
    named, fingerprint = folder.parent, f"-{'[0-9a-f]' * 8}"
    prefix = glob.escape(named.name.rpartition("-")[0])
    for path in named.parent.glob(f"{prefix}{fingerprint}/{glob.escape(folder.name)}/run.json"):
        stored = read_record(path, "identity")["identity"]
        if all(stored.get(k) == v for k, v in identity.items() if k not in CHANGED_BY_VERSIONS):
            refuse_other_version(path.parent, stored, identity)


def refuse_other_version(folder: Path, stored: dict[str, Any], identity: dict[str, Any]) -> None:
    """Refuse rows of another version of the product. Raises SpecError."""
    there, here = stored.get("row_version", 0), identity["row_version"]
    if there != here:
        raise SpecError(
            f"{folder} was made by another version of Rethink, whose rows differ (row_version "
            f"{there} there, {here} here): go on with that version, or choose another run.name"
        )


def differing(stored: dict[str, Any], current: dict[str, Any]) -> str:
    """The keys whose values differ, with both values where they are short."""
    keys = [k for k in sorted(stored.keys() | current.keys()) if stored.get(k) != current.get(k)]
    return ", ".join(
        f"{k} ({_short(stored.get(k))} there, {_short(current.get(k))} now)" for k in keys
    )


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:18]}...{text[-18:]}"
