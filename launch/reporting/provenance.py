"""Where rows come from: what run.json says of each folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launch.reporting.runs import record
from pipeline.store.stored_record import attempts_of

Facts = dict[str, Any]
SHORT = 12  # characters of a fingerprint or commit


def facts(folder: Path, num_rows: int) -> Facts:
    """What is known of the run in a folder, by the names that the report shows it under.

    A fact that the folder does not hold is left out. `num_rows` is how many rows were read from it.
    """
    stored = record(folder)
    if stored is None:
        return {"folder": folder.name, "rows": str(num_rows)}
    spec, attempts = stored.get("spec", {}), attempts_of(folder)
    last: Mapping[str, Any] = attempts[-1] if attempts else {}
    backend = last.get("backend") or {}
    model = spec.get("model") or {}
    known = {
        "folder": "/".join(folder.parts[-2:]),
        "model": model.get("path") or model.get("name"),
        "revision": model.get("revision"),
        "step": stored.get("step"),
        "dtype": backend.get("dtype") or (spec.get("quantization") or {}).get("dtype"),
        "backend": (stored.get("identity") or {}).get("backend"),
        "device": backend.get("device"),
        "decoder": backend.get("decoder"),
        "seed": (spec.get("run") or {}).get("seed"),
        "rows": f"{num_rows} of {stored.get('rows_wanted', 'an unknown number')}",
        "state": last.get("status"),
        "begun": attempts[0].get("start") if attempts else None,
        "ended": last.get("end"),
        "fingerprint": str(stored.get("fingerprint") or "")[:SHORT],
        "commit": str(last.get("git") or "")[:SHORT],
        "versions": _versions(last),
    }
    swept = stored.get("swept")
    known |= swept if isinstance(swept, dict) else {}
    return {str(name): str(value) for name, value in known.items() if value not in (None, "")}


def _versions(attempt: Mapping[str, Any]) -> str:
    python = {"python": attempt["python"]} if attempt.get("python") else {}
    return ", ".join(f"{name} {v}" for name, v in (python | attempt.get("versions", {})).items())


def provenance(found: Sequence[Facts]) -> Facts:
    """Facts of several folders: those that all share, and a table of those that differ.

    `shared` holds pairs of name and value; `columns` and `rows` are the table, a row per folder.
    """
    names = list(dict.fromkeys(name for one in found for name in one))
    differing = [n for n in names if len({one.get(n) for one in found}) > 1]
    shared = [[n, found[0][n]] for n in names if n not in differing]
    rows = [[one.get(n) for n in differing] for one in found]
    return {"shared": shared, "columns": differing, "rows": rows}
