"""Passes for finished rows that lack them.

`python launch/backfill.py task=math cue=wait backfill.input=rows.jsonl backfill.inplace=true`
"""

import os

os.environ.setdefault(
    "OMP_WAIT_POLICY", "passive"
)  # before torch: spinning waits stall a busy machine

import fcntl
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig

from launch.config.command_line import ended, run_application
from launch.config.compose import build, build_backend, register_schema, to_spec
from launch.running.here import run_until_signal
from pipeline.analysis.row_files import WORKING
from pipeline.backfill.missing_passes import Gap, Rules, Scan, scan, split_cues
from pipeline.backfill.points import (
    BackfillPoint,
    chosen,
    finished,
    reader,
    seed_rows,
    trace_of,
    write_merged,
)
from pipeline.protocols import Backend, Cue, Task
from pipeline.run.phases import refuse_unused_caps, resolve_phases
from pipeline.run.point import model_name, refuse_what_it_cannot
from pipeline.run.row_fields import SAMPLING_COLUMNS
from pipeline.run.session import Session
from pipeline.spec import RunSpec, SpecError, digest, require
from pipeline.store.claims import ALONE
from pipeline.store.files import Row
from pipeline.store.leases import Held, Leases


@dataclass(slots=True)
class Backfill(Rules):
    """Which rows of which file get passes, and where the result goes.

    `phrase`: cues joined by three bars, instead of the group `cue`; `phrase_file` holds them where
    the command line would mangle them. `other_model`: the rows were made by another model.
    """

    input: str = MISSING
    output: str | None = None
    inplace: bool = False
    flush_every: int | None = None
    phrase: str | None = None
    phrase_file: str | None = None
    other_model: bool = False

    def __post_init__(self) -> None:
        """Check ranges."""
        Rules.__post_init__(self)
        every = self.flush_every
        require(every is None or every >= 1, "backfill.flush_every", "be 1 or more", every)

    def check(self) -> None:
        """Refuse what does not go together or is not there."""
        one = self.inplace != (self.output is not None)
        both = {"output": self.output, "inplace": self.inplace}
        require(one, "backfill", "have either output=FILE or inplace=true", both)
        require(Path(self.input).is_file(), "backfill.input", "name a file of rows", self.input)

    @property
    def target(self) -> Path:
        """The file that is written."""
        return Path(self.output or self.input)


@dataclass(slots=True)
class BackfillSpec(RunSpec):
    """A run's spec, and what is to be backfilled."""

    backfill: Backfill = field(default_factory=Backfill)


@hydra.main(version_base="1.3", config_path="../conf", config_name="backfill")
def main(config: DictConfig) -> None:
    """Backfill one file."""
    if status := ended(lambda: backfill(config)):
        sys.exit(status)


def backfill(config: DictConfig) -> int:
    """Backfill what a composed config says. Returns 0, 1 (a trace failed) or 130 (interrupted)."""
    spec = to_spec(config)
    assert isinstance(spec, BackfillSpec)
    spec.backfill.check()
    source = Path(spec.backfill.input)
    cues = cues_of(spec)
    with locked(source, spec):
        found = scan(source, spec.backfill, cues)
        require(found.rows > 0, "backfill.input", "hold rows of a run", str(source))
        print(sentence(found, spec))
        if spec.run.dry:
            return 0
        if not found.gaps:
            return nothing_to_do(source, spec.backfill)
        return fill(spec, found, cues)


def cues_of(spec: BackfillSpec) -> tuple[Cue, ...]:
    """The cues of the group, or of a phrase."""
    given = spec.backfill
    phrase = given.phrase
    if given.phrase_file is not None:
        there = Path(given.phrase_file).is_file()
        require(there, "backfill.phrase_file", "name a file of cues", given.phrase_file)
        phrase = Path(given.phrase_file).read_text(encoding="utf-8")
    if phrase is not None:
        return split_cues(phrase)
    require(len(spec.cue) > 0, "cue", "name at least one cue (cue=wait), or backfill.phrase", [])
    return tuple(Cue(name, cue.text, cue.control) for name, cue in spec.cue.items())


def sentence(found: Scan, spec: BackfillSpec) -> str:
    """What there is to do."""
    would = "would get passes" if spec.run.dry else "get passes"
    text = f"{spec.backfill.input}: {len(found.gaps)} of {found.rows} rows {would}"
    if found.skipped:
        text += f"; {found.skipped} lack them and have no sample, problem or pass 1 to start from"
    if found.broken:
        text += f"; {len(found.broken)} undecodable lines"
    return text


def nothing_to_do(source: Path, given: Backfill) -> int:
    """In place nothing happens; else the file is copied as it is."""
    if not given.inplace:
        shutil.copyfile(source, given.target)
        print(f"copied to {given.target}")
    return 0


def fill(spec: BackfillSpec, found: Scan, cues: tuple[Cue, ...]) -> int:
    """Run the traces and merge what they made into the target."""
    source, target = Path(spec.backfill.input), spec.backfill.target
    backend = build_backend(spec)
    refuse_what_it_cannot(spec, backend)
    task: Task = build("task", spec.task)
    work = target.with_name(f"{target.name}{WORKING}")
    parts = points_of(spec, found, cues, (task, backend, work))
    merge = Merge(spec, parts, source, keep_original(source, spec.backfill))
    sessions = run_until_signal([p for _, p in parts], backend, merge.on_row).sessions
    rows = merge.write()
    print(f"{rows} rows with new passes in {target}")
    states = {session.status for session in sessions}
    if states == {"complete"}:
        shutil.rmtree(work)
        return 0
    print(f"not finished: the same command goes on from {work}")
    return 1 if "failed" in states else 130


Built = tuple[Task, Backend, Path]
Part = tuple[tuple[Any, ...], BackfillPoint]


def points_of(spec: BackfillSpec, found: Scan, cues: tuple[Cue, ...], built: Built) -> list[Part]:
    """One point for all rows that were made together, and what tells these rows apart."""
    gaps: dict[tuple[Any, ...], list[Gap]] = {}
    for gap in found.gaps:
        gaps.setdefault(gap.apart, []).append(gap)
    read = reader(Path(spec.backfill.input))
    parts = []
    for group, members in gaps.items():
        same_model(read(members[0].offset), spec, built[1])
        point = _point(spec, cues, built, group)
        point.traces = [trace_of(read(gap.offset)) for gap in members]
        point.examples = [example for example, _ in point.traces]
        preferred = spec.run.pass1_sample
        if preferred is not None:
            places = zip(point.canonical_order(), members, strict=True)
            point.offsets = {key: chosen(found, gap, preferred) for key, gap in places}
            point.read = read
        seed_rows(point, (read(gap.offset) for gap in members), spec.backfill.force)
        parts.append((group, point))
    refuse_unused_caps((phase for _, point in parts for phase in point.phases), spec, built[0].name)
    return parts


def _point(
    spec: BackfillSpec, cues: tuple[Cue, ...], built: Built, group: tuple[Any, ...]
) -> BackfillPoint:
    task, backend, work = built
    single = replace(spec.run, phases="single") if group[-1] == "single" else spec.run
    phases = resolve_phases(task, backend, replace(spec, run=single))
    settings = {k: v for k, v in asdict(spec).items() if k in ("task", "sampling", "quantization")}
    shown = {"seed": spec.run.seed, "pass1_sample": spec.run.pass1_sample}
    identity = {"backfill.spec": digest(settings | shown)} | backend.identity()
    name = model_name(spec, backend)
    point = BackfillPoint(spec, task, [], phases, cues, identity, step=0, model_name=name)
    asked = [asdict(cue) for cue in cues]
    point.at = work / digest([repr(group), point.fingerprint, asked, spec.backfill.force])[:12]
    return point


def same_model(row: Row, spec: BackfillSpec, backend: Backend) -> None:
    """Refuse rows that say that another model made them."""
    made_by, name = row.get("model"), model_name(spec, backend)
    wanted = made_by in (None, name) or spec.backfill.other_model
    rule = (
        f"be {made_by}, which made rows of {spec.backfill.input}; choose it, leave these rows out "
        f"(backfill.filter={{model:{name}}}) or say backfill.other_model=true"
    )
    require(wanted, "model", rule, name)


@dataclass(slots=True)
class Merge:
    """Puts what is finished into the target: every `flush_every` rows, and at the end."""

    spec: BackfillSpec
    parts: Sequence[Part]
    source: Path
    original: Path
    rows: int = 0

    def on_row(self, session: Session, row: Row | None) -> None:
        """Count a finished row."""
        self.rows += row is not None
        every = self.spec.backfill.flush_every
        if row is not None and every and self.rows % every == 0:
            self.write()

    def write(self) -> int:
        """Write the target; returns its rows with new passes."""
        made = finished([point for _, point in self.parts], [group for group, _ in self.parts])
        made.force = self.spec.backfill.force
        made.provenance = self._provenance()
        return write_merged(self.original, self.spec.backfill.target, made)

    def _provenance(self) -> dict[str, Any]:
        sampling = {name: getattr(self.spec.sampling, name) for name in SAMPLING_COLUMNS}
        fingerprint = self.parts[0][1].fingerprint
        seed = self.spec.run.seed
        return {
            "model": self.parts[0][1].model_name,
            "fingerprint": fingerprint,
            "seed": seed,
        } | sampling


def keep_original(source: Path, given: Backfill) -> Path:
    """What is merged into: the source, in place a link to it as it is; the first is a backup."""
    if not given.inplace:
        return source
    backup = source.with_name(f"{source.name}.bak_pass2")
    if not backup.exists():
        _link(source, backup)
    before = source.with_name(f".{source.name}.before_backfill")
    before.unlink(missing_ok=True)
    _link(source, before)
    return before


def _link(source: Path, name: Path) -> None:
    try:
        os.link(source, name)
    except OSError:  # a file system without links
        shutil.copy2(source, name)


@contextmanager
def locked(source: Path, spec: BackfillSpec) -> Iterator[None]:
    """Keep other backfills, and runs that would write to the same folder, away."""
    path = source.with_name(f"{source.name}.backfill_pass2.lock")
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SpecError(f"{source} is being backfilled; wait for that to end") from None
        try:
            with _run_folder_lease(source.parent, spec):
                yield
            source.with_name(f".{source.name}.before_backfill").unlink(missing_ok=True)
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def _run_folder_lease(folder: Path, spec: BackfillSpec) -> Iterator[None]:
    """The lease of a run folder, where the file lies in one and is written in place."""
    if not (spec.backfill.inplace and (folder / "run.json").exists()):
        yield
        return
    leases = Leases(folder, spec.run.lease_seconds)
    leases.enter()
    try:
        lease = leases.take(ALONE)
        yield
        leases.give_back(lease)
    except Held as held:
        raise SpecError(f"{folder} is being written by {held.holder}; wait for it to end") from held
    finally:
        leases.close()


ConfigStore.instance().store(name="backfill_spec", node=BackfillSpec)
register_schema()

if __name__ == "__main__":
    sys.exit(run_application(main))
