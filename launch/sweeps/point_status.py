"""How run folders stand, read from their files: state, rows, pace and the last error."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from launch.sweeps.listing import Listed, listed
from launch.sweeps.points import count_lines
from launch.sweeps.submitted_jobs import NOTE
from pipeline.protocols import Cue
from pipeline.run.pass_fields import cue_hash
from pipeline.run.point import labelled
from pipeline.spec import require
from pipeline.store.files import read_lines
from pipeline.store.leases import Leases
from pipeline.store.pass_names import stored_passes
from pipeline.store.row_heads import key_of
from pipeline.store.row_index import parts_of, read_rows
from pipeline.store.stored_record import attempts_of, read_record


@dataclass(slots=True)
class PointStatus:
    """How one run folder stands, by its files alone."""

    folder: Path | None  # None: a sweep waits for its checkpoint
    writers: list[str]  # those that live, or of whom nothing else is known
    rows: int
    wanted: int
    state: str  # complete, running, or how the last attempt ended
    tokens_per_second: float
    rows_per_second: float
    error: str
    overrides: Sequence[str] = ()  # of a point that has not begun
    swept: Mapping[str, str] = field(default_factory=dict)  # what its sweep varied
    run: str = ""  # `run.name`, once it has begun

    @property
    def name(self) -> str:
        """What tells it from others."""
        if self.folder is None:
            return " ".join(self.overrides)
        return labelled(folder_name(self.folder, self.run), self.swept)

    @property
    def seconds_left(self) -> float | None:
        """At the present pace; None when nobody works or no row has come yet."""
        left = max(0, self.wanted - self.rows)
        return left / self.rows_per_second if self.rows_per_second else None


def folder_name(folder: Path, run: str) -> str:
    """A point's folder as people know it: from its run's name on, or with that before it."""
    above = PurePath(run).parts
    if above == folder.parts[-2 - len(above) : -2]:
        return "/".join(folder.parts[-2 - len(above) :])
    return f"{run}: {'/'.join(folder.parts[-2:])}"


class Reader:
    """Looks at run folders again and again; it remembers whose heart has beaten."""

    def __init__(self, roots: Sequence[Path]) -> None:
        """Nothing is read yet."""
        self.roots = roots
        self._leases: dict[Path, Leases] = {}

    def points(self) -> list[PointStatus]:
        """Every folder with a run.json, in order, then what sweeps have not begun."""
        started = self.started()
        planned = [point for root in self.roots for point in listed(root)]
        started |= {p.folder for p in planned if p.folder and (p.folder / "run.json").exists()}
        waiting = {p.name: p for p in (_waiting(q) for q in planned if q.folder not in started)}
        return [*(self.point(folder) for folder in sorted(started)), *waiting.values()]

    def started(self) -> set[Path]:
        """Every folder below the roots with a run.json."""
        return {path.parent for root in self.roots for path in root.rglob("run.json")}

    def point(self, folder: Path) -> PointStatus:
        """How the run in a folder stands. Raises SpecError where its run.json cannot be read."""
        record = read_record(folder / "run.json", "spec")
        attempts = attempts_of(folder)
        wanted = record.get("rows_wanted", 0)
        leases = self._leases.setdefault(folder, Leases(folder, 60))
        writers = [name for name, alive in leases.others().items() if alive is not False]
        working = [a for a in attempts if a["status"] == "running" and _is_of(a, writers)]
        seconds = [max(a["seconds"], 1e-9) for a in working]
        last = attempts[-1]["status"] if attempts else "empty"
        rows = sum(map(count_lines, row_files_of(folder, record)))
        if rows >= wanted and last != "complete":  # lines may repeat a row, or lack a cue's pass
            rows = _num_whole(folder, record)
        swept = record.get("swept")
        return PointStatus(
            folder,
            writers,
            rows,
            wanted,
            _state(last, writers, rows >= wanted),
            sum(a["tokens"] / s for a, s in zip(working, seconds, strict=True)),
            sum(a["rows"] / s for a, s in zip(working, seconds, strict=True)),
            _last_error(folder),
            swept=swept if isinstance(swept, dict) else {},
            run=str(record["spec"]["run"].get("name", "")),
        )


def _waiting(point: Listed) -> PointStatus:
    state = "no checkpoint"
    if point.folder is not None:
        state = "submitted" if (point.folder / NOTE).exists() else "not begun"
    about = (state, 0.0, 0.0, point.problem, point.overrides)
    return PointStatus(point.folder, [], 0, point.rows_wanted, *about)


def row_files_of(folder: Path, record: dict[str, Any]) -> list[Path]:
    """The file of a run's rows and the parts of its shards, as far as they exist."""
    path = _rows_path(folder, record)
    return [file for file in (path, *parts_of(path)) if file.exists()]


def _rows_path(folder: Path, record: Mapping[str, Any]) -> Path:
    """The file of a run's rows, which lies in its folder whatever the record says.

    Raises:
        SpecError: the record's split leads elsewhere.
    """
    split = record["spec"]["run"]["split"]
    plain = isinstance(split, str) and "/" not in split and "\\" not in split
    rule = "be a word, a part of the rows' file name"
    require(plain, f"{folder / 'run.json'}: spec.run.split", rule, split)
    return folder / f"step{record['step']:04d}_{split}.jsonl"


def _num_whole(folder: Path, record: Mapping[str, Any]) -> int:
    """How many rows have the passes of the run's cues, each row counted once."""
    cues = [Cue(name, **about) for name, about in record["spec"]["cue"].items()]
    hashes = {cue_hash(cue) for cue in cues}
    path = _rows_path(folder, record)
    passes = {key_of(row): {p["cue_hash"] for p in stored_passes(row)} for row in read_rows(path)}
    return sum(made >= hashes for made in passes.values())


def _is_of(attempt: dict[str, Any], writers: Sequence[str]) -> bool:
    return any(name.startswith(f"{attempt['host']}-{attempt['pid']}-") for name in writers)


def _state(last: str, writers: Sequence[str], enough: bool) -> str:
    if writers:
        return "running"
    if enough or last == "complete":
        return "complete" if enough else "incomplete"
    return "died" if last == "running" else last


def _last_error(folder: Path) -> str:
    files = sorted(folder.glob("failures*.jsonl"), key=lambda file: file.stat().st_mtime)
    if not files:
        return ""
    lines = [row for _, row in read_lines(files[-1]) if row is not None]
    return str(lines[-1]["error"]) if lines else ""
