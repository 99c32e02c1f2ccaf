"""Leases: which process may work on what in a run folder, across processes and machines.

Of the file system (local, NFS 3 or 4, Lustre, GPFS) this is assumed, and no lock calls are made:
link(2) lets one of several contenders create a name; rename replaces a name at once; what a
process wrote and closed is seen by anyone who opens the file later (close-to-open); cached names
and attributes are stale for less than the lease's seconds (60 for NFS by default). Clocks are not
compared between machines.

A lease is a file `<name>.<epoch>`, of which the highest epoch counts. Taking over creates the next
epoch, so one contender wins, and the one before finds out when it looks (`held`). A holder is dead
when its process is gone from this machine (Linux), or when its heartbeat has not moved for the
lease's seconds while somebody watched.
"""

import json
import os
import secrets
import socket
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.store.files import SCRATCH, StoreError, create_once, write_atomically

BEATS_PER_LEASE = 4


class Held(RuntimeError):
    """Another writer holds the lease. `alive` False: whether it lives is not known yet."""

    def __init__(self, name: str, holder: str, alive: bool) -> None:
        host, _, rest = holder.rpartition("-")[0].rpartition("-")
        self.holder = f"process {rest} on {host}" if host else holder
        self.alive = alive
        super().__init__(f"{name} is held by {self.holder}")


class Raced(Held):
    """Another contender created the lease first; the next look shows which."""


class Lease(NamedTuple):
    """A lease that this writer took.

    `inherited`: the previous holder died without giving it back.
    """

    name: str
    epoch: int
    inherited: bool


class _Sight(NamedTuple):
    """A heartbeat as it was last seen, since when, and whether it was ever seen to change."""

    beat: str
    since: float  # seconds on this process's monotonic clock
    changed: bool


class Leases:
    """One writer's presence in a folder: its name, its heartbeat, and the leases it takes."""

    def __init__(self, folder: Path, seconds: float) -> None:
        """`seconds` without a heartbeat make a writer dead. Nothing is written before `enter`."""
        self.folder = folder / ".leases"
        self.seconds = seconds
        self.work = ""  # what its writer is to make, told with the heartbeat; see `Claims`
        self.writer = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._process = _process(os.getpid())
        self._seen: dict[str, _Sight] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def enter(self) -> None:
        """Start the heartbeat."""
        if self._thread is None:
            self._stop.clear()
            self.folder.mkdir(parents=True, exist_ok=True)
            self._beat(0)
            self._thread = threading.Thread(target=self._beats, name="heartbeat", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the heartbeat; what is still held counts as left behind."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self._beat_path(self.writer).unlink(missing_ok=True)

    def _beats(self) -> None:
        count = 0
        while not self._stop.wait(self.seconds / BEATS_PER_LEASE):
            count += 1
            try:
                self._beat(count)
            except OSError:  # a full or vanished disk: the rows' own writes tell it better
                continue

    def _beat(self, count: int) -> None:
        """Replace the heartbeat as a whole: half of one would not say whose process it is."""
        path = self._beat_path(self.writer)
        scratch = path.with_name(f".{path.name}{SCRATCH}")
        scratch.write_text(
            json.dumps(self._process | {"work": self.work, "count": count}), encoding="utf-8"
        )
        os.replace(scratch, path)

    def _beat_path(self, writer: str) -> Path:
        return self.folder / f"{writer}.beat"

    @property
    def lease_poll_seconds(self) -> float:
        """Seconds between two looks at writers that may be dead."""
        return self.seconds / 10

    def take(self, name: str) -> Lease:
        """Take a lease that nobody holds, or that a dead writer left. Raises Held."""
        return self._next_epoch(name, "held")

    def fence_off(self, name: str) -> None:
        """See that nobody holds a lease, and that a dead writer who left it notices.

        Nobody is ever seen to hold it because of this. Raises Held.
        """
        if self.state(name) == "held":
            self._next_epoch(name, "free")

    def _next_epoch(self, name: str, state: str) -> Lease:
        epoch, content = self._latest(name)
        is_left = content.get("state") == "held"
        if is_left and content.get("writer") != self.writer:
            writer = str(content.get("writer"))
            alive = self.alive(writer)
            if alive is not False:
                raise Held(name, writer, bool(alive))
        if not create_once(self.folder / f"{name}.{epoch + 1}", self._encoded(state)):
            raise Raced(name, "another process, which was faster", True)
        return Lease(name, epoch + 1, is_left)

    def state(self, name: str) -> str:
        """`free`, `held` or `done`, by what the files say."""
        return str(self._latest(name)[1].get("state", "free"))

    def held(self, lease: Lease) -> bool:
        """Whether nobody has taken the lease over."""
        content = _parsed(_read(self.folder / f"{lease.name}.{lease.epoch}") or "")
        mine = content == {"writer": self.writer, "state": "held"}
        return mine and not (self.folder / f"{lease.name}.{lease.epoch + 1}").exists()

    def give_back(self, lease: Lease, state: str = "free") -> None:
        """End a lease as `free` or `done`; one that was taken over stays with its new holder."""
        if not self.held(lease):
            return
        path = self.folder / f"{lease.name}.{lease.epoch}"
        try:
            write_atomically(path, [self._encoded(state)])
        except StoreError:
            if self.held(lease):
                raise
            return
        for epoch in range(lease.epoch - 1, 0, -1):  # only the latest is looked at
            old = self.folder / f"{lease.name}.{epoch}"
            if not old.exists():
                break
            old.unlink(missing_ok=True)

    def others(self) -> dict[str, bool | None]:
        """Other writers with a heartbeat file: alive, dead (False) or not known yet (None)."""
        names = [path.name.removesuffix(".beat") for path in self.folder.glob("*.beat")]
        return {name: self.alive(name) for name in sorted(names) if name != self.writer}

    def alive(self, writer: str) -> bool | None:
        """Whether a writer lives; None while it has not been watched for long enough."""
        beat = _read(self._beat_path(writer))
        if beat is None:
            return False
        process = _parsed(beat)
        known_here = self._process["started"] is not None
        here = known_here and all(process.get(k) == self._process[k] for k in ("boot", "namespace"))
        if here and _started(process["pid"]) != process["started"]:
            return False
        sight = self._seen.get(writer)
        if sight is None or beat != sight.beat:
            sight = self._seen[writer] = _Sight(beat, time.monotonic(), sight is not None)
        if time.monotonic() - sight.since > self.seconds:
            return False
        return True if here or sight.changed else None

    def has_living_holder(self, name: str) -> bool:
        """Whether a lease is held by another writer that is known to live."""
        holder = self._other_holder(name)
        return holder is not None and self.alive(holder) is True

    def has_equal_holder(self, name: str) -> bool:
        """Whether a lease is held by another writer that is to make what this one is."""
        holder = self._other_holder(name)
        beat = None if holder is None else _read(self._beat_path(holder))
        return beat is not None and _parsed(beat).get("work") == self.work

    def held_by_others(self, prefix: str) -> bool:
        """Whether others, who are not known to be dead, hold leases whose names begin so."""
        names = {path.name.rpartition(".")[0] for path in self.files(prefix)}
        holders = {self._other_holder(name) for name in names} - {None}
        return any(self.alive(str(holder)) is not False for holder in holders)

    def _other_holder(self, name: str) -> str | None:
        content = self._latest(name)[1]
        is_held = content.get("state") == "held" and content.get("writer") != self.writer
        return str(content.get("writer")) if is_held else None

    def files(self, prefix: str) -> list[Path]:
        """The lease files of names that begin so. What others put beside them is none."""
        paths = self.folder.glob(f"{prefix}*.[0-9]*")
        return [path for path in paths if path.suffix[1:].isdecimal()]

    def clear(self, prefix: str) -> None:
        """Remove the lease files of names that begin so."""
        for path in self.files(prefix):
            path.unlink(missing_ok=True)

    def bury(self) -> None:
        """Remove the heartbeat files of writers that are dead."""
        for writer, alive in self.others().items():
            if alive is False:
                self._beat_path(writer).unlink(missing_ok=True)

    def _latest(self, name: str) -> tuple[int, dict[str, Any]]:
        paths = self.folder.glob(f"{name}.[0-9]*")
        epochs = [int(path.suffix[1:]) for path in paths if path.suffix[1:].isdecimal()]
        for epoch in sorted(epochs, reverse=True):
            text = _read(self.folder / f"{name}.{epoch}")
            if text is not None:
                return epoch, _parsed(text)
        return 0, {}

    def _encoded(self, state: str) -> bytes:
        return json.dumps({"writer": self.writer, "state": state}).encode()


def _parsed(text: str) -> dict[str, Any]:
    """A small JSON file; one that is being written at this moment reads as empty."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _process(pid: int) -> dict[str, Any]:
    """What tells this process from every other one, here or elsewhere."""
    return {
        "host": socket.gethostname(),
        "pid": pid,
        "started": _started(pid),
        "boot": _read(Path("/proc/sys/kernel/random/boot_id")) or socket.gethostname(),
        "namespace": _namespace(),
    }


def _started(pid: int) -> str | None:
    """Start time of a process in clock ticks since boot; None when it is gone or a zombie."""
    text = _read(Path(f"/proc/{pid}/stat"))
    if text is None:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _namespace() -> str:
    path = Path("/proc/self/ns/pid")
    return os.readlink(path) if path.exists() else ""
