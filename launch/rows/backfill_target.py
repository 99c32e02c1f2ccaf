"""The file that a backfill writes: kept from others, its original kept, new passes merged in."""

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.rows.backfill_spec import Backfill, BackfillSpec
from pipeline.backfill.merging import FinishedPasses, write_merged
from pipeline.backfill.points import BackfillPoint
from pipeline.run.row_fields import SAMPLING_COLUMNS, strategy_columns
from pipeline.run.session import Session
from pipeline.spec import SpecError
from pipeline.store.claims import Claims
from pipeline.store.files import Fence, Row
from pipeline.store.leases import Held, Leases


@dataclass(slots=True)
class Merge:
    """Puts what is finished into the target: every `flush_every` rows, and at the end."""

    spec: BackfillSpec
    points: Sequence[BackfillPoint]
    original: Path
    fence: Fence | None = None
    rows: int = 0

    def on_row(self, session: Session, row: Row | None) -> None:
        """Count a finished row."""
        self.rows += row is not None
        every = self.spec.backfill.flush_every
        if row is not None and every and self.rows % every == 0:
            self.write()

    def write(self) -> int:
        """Write the target; returns its rows with new passes."""
        finished = FinishedPasses.of_points(self.points)
        finished.force = self.spec.backfill.force
        finished.provenance = self._provenance()
        return write_merged(self.original, self.spec.backfill.target, finished, self.fence)

    def _provenance(self) -> dict[str, Any]:
        sampling = {name: getattr(self.spec.sampling, name) for name in SAMPLING_COLUMNS}
        model = self.points[0].point.model_name
        sampling |= strategy_columns(self.spec.sampling)
        return {"model": model, "seed": self.spec.run.seed} | sampling


def nothing_to_do(source: Path, given: Backfill) -> None:
    """In place nothing happens; else the file is copied as it is."""
    if not given.inplace:
        shutil.copyfile(source, given.target)
        print(f"copied to {given.target}")


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
def locked(source: Path, spec: BackfillSpec) -> Iterator[Fence | None]:
    """Keep other backfills, and runs that would write to the same folder, away.

    The fence, if the file lies in a run folder, is for what is written there: it is lost where this
    process pauses for longer than its lease and a run goes on. A dry run keeps nobody away.
    """
    if spec.run.dry:
        yield None
        return
    path = source.with_name(f"{source.name}.backfill_pass2.lock")
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SpecError(f"{source} is being backfilled; wait for that to end") from None
        try:
            with _run_folder_lease(source.parent, spec) as fence:
                yield fence
            source.with_name(f".{source.name}.before_backfill").unlink(missing_ok=True)
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def _run_folder_lease(folder: Path, spec: BackfillSpec) -> Iterator[Fence | None]:
    """Be alone in a run folder, where the file lies in one and is written in place."""
    if not (spec.backfill.inplace and (folder / "run.json").exists()):
        yield None
        return
    claims = Claims(Leases(folder, spec.run.lease_seconds), shared=False, traces=[])
    try:
        claims.enter()
        yield claims.fence(claims.whole_lease)
    except Held as held:
        raise SpecError(f"{folder} is being written by {held.holder}; wait for it to end") from held
    finally:
        claims.close()
