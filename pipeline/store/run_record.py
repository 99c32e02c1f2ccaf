"""run.json: the spec, its fingerprint, and one record per attempt, as a run writes it."""

import datetime
import json
import os
import platform
import socket
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from pipeline.store.environment import git_commit, job_id, peak_memory_mib, versions
from pipeline.store.files import Fence, create_once, write_atomically
from pipeline.store.row_index import AttemptCount
from pipeline.store.stored_record import attempts_of, refuse_other_spec

SECONDS_BETWEEN_SAVES = 5.0


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
        self.write_seconds = 0.0  # appending rows
        self.write_bytes = 0  # by which that raised the peak of the resident set
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
            attempt["rows"] = max(attempt.get("rows", 0), count.num_rows)
            attempt["tokens"] = max(attempt.get("tokens", 0), count.num_tokens)
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
        """End this attempt: `complete`, `shared`, `interrupted` or `failed`.

        Its `phases` are those that the backend tells, and `write`.
        """
        write = {"seconds": round(self.write_seconds, 4), "peak_added_bytes": self.write_bytes}
        phases = backend.get("phases", {}) | {"write": write}
        rest = {name: value for name, value in backend.items() if name != "phases"}
        self.attempt |= {"status": status, "end": _now(), "backend": rest, "phases": phases}
        self.save()


def _encoded(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=1).encode() + b"\n"


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
