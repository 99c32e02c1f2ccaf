"""run.json: the spec, its fingerprint, and one record per attempt."""

import datetime
import glob
import json
import os
import platform
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from pipeline.spec import SpecError
from pipeline.store.files import Fence, create_once, write_atomically
from pipeline.store.rows import AttemptCount

# What a version of the product, and no user, may have changed in a fingerprint.
CHANGED_BY_VERSIONS = ("row_version", "backend")
SECONDS_BETWEEN_SAVES = 5.0
PACKAGES = (
    "hydra-core",
    "omegaconf",
    "torch",
    "transformers",
    "datasets",
    "deepspeed",
    "submitit",
    "openai",
    "aiohttp",
)


class RunRecord:
    """The run.json of one point's folder, with this attempt's record in it.

    One of several writers (`shared`) keeps its attempt in a file of its own, `attempt-<n>.json`,
    until somebody who is alone with the folder calls `fold`.
    """

    def __init__(
        self,
        folder: Path,
        facts: Mapping[str, Any],
        shared: bool = False,
        shard: int | None = None,
        fence: Fence | None = None,
    ) -> None:
        """`facts` are those of the run: `fingerprint`, `identity`, spec and so on. See `open`."""
        self.path = folder / "run.json"
        self.shared, self.shard, self.fence = shared, shard, fence
        self.data: dict[str, Any] = dict(facts) | {"attempts": []}
        self.attempt: dict[str, Any] = {}
        self._own = self.path
        self._clock = self._saved = time.monotonic()

    def open(self) -> None:
        """Take in what run.json says of earlier attempts, or create it, one of several writers.

        Raises:
            SpecError: the folder holds rows of another fingerprint.
        """
        if self.shared:
            create_once(self.path, _encoded(self.data))
        stored = refuse_other_spec(self.path.parent, self.data)
        self.data["attempts"] = stored["attempts"] if stored else []

    def start(self, last_attempt: int) -> None:
        """Start this attempt's record. `last_attempt` is the highest that a row names."""
        earlier = [attempt["attempt"] for attempt in attempts_of(self.path.parent)]
        self.attempt = {
            "attempt": max([last_attempt, *earlier]) + 1,
            "status": "running",
            "start": _now(),
            "end": None,
            "rows": 0,
            "tokens": 0,
            "seconds": 0.0,
            "failed": 0,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "writer": self.fence.writer if self.fence else None,
            "shard": self.shard,
            "devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "job": job_id(),
            "python": platform.python_version(),
            "command": sys.argv,
            "versions": versions(),
            "git": git_commit(),
        }
        if self.shared:
            while not create_once(self._numbered(), _encoded(self.attempt)):
                self.attempt["attempt"] += 1
            self._own = self._numbered()
        else:
            self.data["attempts"].append(self.attempt)
        self.save()

    def _numbered(self) -> Path:
        return self.path.with_name(f"attempt-{self.attempt['attempt']}.json")

    def fold(self) -> None:
        """Take the files of all attempts into run.json; only for who is alone with the folder."""
        files = sorted(self.path.parent.glob("attempt-*.json"))
        self.data["attempts"] = attempts_of(self.path.parent)
        if files or not self.path.exists():
            self._write(self.path, self.data)
        for file in files:
            file.unlink(missing_ok=True)

    def amend(
        self,
        living: Collection[str],
        complete: bool,
        counts: Callable[[], Mapping[int, AttemptCount]],
    ) -> None:
        """Say how attempts ended that could not say it; only for who is alone, after `fold`.

        One that never ended, and whose writer is not `living`, was `killed`; the rows themselves
        tell its rows and tokens since it last saved. One that had left the rest to other shards is
        `complete` once they have done it.
        """
        others = [a for a in self.data["attempts"] if a["attempt"] != self.attempt.get("attempt")]
        killed = [a for a in others if a["status"] == "running" and a.get("writer") not in living]
        shared = [a for a in others if a["status"] == "shared" and complete]
        counted = counts() if killed else {}
        for attempt in killed:
            count = counted.get(attempt["attempt"], AttemptCount(0, 0))
            attempt["status"] = "killed"
            attempt["rows"] = max(attempt["rows"], count.num_rows)
            attempt["tokens"] = max(attempt["tokens"], count.num_tokens)
        for attempt in shared:
            attempt["status"] = "complete"
        if killed or shared:
            self._write(self.path, self.data)

    @property
    def last_status(self) -> str | None:
        """How the last attempt of all ended; None without one."""
        attempts = self.data["attempts"]
        return str(attempts[-1]["status"]) if attempts else None

    def row_done(self, tokens: int) -> None:
        """Count a finished row; every few seconds the record on disk says so."""
        self.attempt["rows"] += 1
        self.attempt["tokens"] += tokens
        if time.monotonic() - self._saved > SECONDS_BETWEEN_SAVES:
            self.save()

    def save(self) -> None:
        """Write this attempt's file as a whole."""
        self._saved = time.monotonic()
        self.attempt["seconds"] = round(time.monotonic() - self._clock, 3)
        self.attempt["peak_memory_mib"] = peak_memory_mib()
        self._write(self._own, self.attempt if self.shared else self.data)

    def _write(self, path: Path, value: object) -> None:
        write_atomically(path, [_encoded(value)], self.fence)

    def close(self, status: str, backend: dict[str, Any]) -> None:
        """End this attempt: `complete`, `shared`, `interrupted` or `failed`."""
        self.attempt |= {"status": status, "end": _now(), "backend": backend}
        self.save()


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


def read_record(path: Path, *keys: str) -> dict[str, Any]:
    """A run.json with its attempts and `keys`. Raises SpecError where it is torn or lacks them."""
    return _read(path, (*keys, "attempts"))


def _read(path: Path, keys: Sequence[str]) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        problem = ", ".join(f"no {key!r}" for key in keys if key not in record)
    except (ValueError, TypeError, RecursionError) as error:
        problem = str(error)
    if problem or not isinstance(record, dict):
        raise SpecError(
            f"{path} is no record of a run ({problem or 'another kind of JSON'}); restore it, "
            "or move it away and start again: rows and journal stay and are used"
        )
    return record


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


def job_id() -> str | None:
    """The cluster's name for the job that this process belongs to."""
    array, index = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{index}" if array else os.environ.get("SLURM_JOB_ID")


def _encoded(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=1).encode() + b"\n"


def differing(stored: dict[str, Any], current: dict[str, Any]) -> str:
    """The keys whose values differ, with both values where they are short."""
    keys = [k for k in sorted(stored.keys() | current.keys()) if stored.get(k) != current.get(k)]
    return ", ".join(
        f"{k} ({_short(stored.get(k))} there, {_short(current.get(k))} now)" for k in keys
    )


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:18]}...{text[-18:]}"


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    """Versions of the packages that can move a number."""
    installed = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed


def git_commit() -> str | None:
    """Commit of the running code, plus `-dirty` when the tree differs; None outside a checkout."""
    here = Path(__file__).parent
    command = [
        "git",
        "-C",
        str(here),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=40",
        "--exclude=*",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def peak_memory_mib() -> int:
    """Largest resident set of this process so far, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak // (1024 if sys.platform != "darwin" else 1024 * 1024)
