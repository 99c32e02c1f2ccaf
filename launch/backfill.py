"""Passes for finished rows that lack them; with `entropy=true`, entropies.

`python launch/backfill.py task=math cue=wait backfill.input=rows.jsonl backfill.inplace=true`
"""

import os

from launch.config.interrupts import guard

if __name__ == "__main__":
    guard()  # before libraries load
os.environ.setdefault(
    "OMP_WAIT_POLICY", "passive"
)  # before torch: spinning waits stall a busy machine

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from launch.config.command_line import ended, run_application
from launch.config.compose import (
    build,
    build_backend,
    refuse_two_caps,
    register_schema,
    to_spec,
)
from launch.rows.backfill_entropies import fill_entropies
from launch.rows.backfill_points import points_of
from launch.rows.backfill_spec import BackfillSpec, cues_of
from launch.rows.backfill_target import Merge, keep_original, locked, nothing_to_do
from launch.running.here import run_until_signal
from pipeline.analysis.row_files import WORKING
from pipeline.backfill.missing_passes import Scan, scan
from pipeline.protocols import Cue, Task
from pipeline.run.point import refuse_what_it_cannot
from pipeline.spec import require
from pipeline.store.files import Fence


@hydra.main(version_base="1.3", config_path="../conf", config_name="backfill")
def main(config: DictConfig) -> None:
    """Backfill one file."""
    overrides = HydraConfig.get().overrides.task
    if status := ended(lambda: backfill(config, overrides)):
        sys.exit(status)


def backfill(config: DictConfig, overrides: Sequence[str] = ()) -> int:
    """Backfill what a composed config says; `overrides` are the words of the line that made it.

    Returns 0, 1 (a trace failed) or 130 (interrupted). A dry run writes nothing, not even a lock.
    """
    spec = to_spec(config)
    assert isinstance(spec, BackfillSpec)
    spec.backfill.check()
    refuse_two_caps(spec, overrides)
    source = Path(spec.backfill.input)
    cues = cues_of(spec)
    if spec.entropy:
        return fill_entropies(spec, cues)
    with locked(source, spec) as fence:
        scanned = scan(source, spec.backfill, cues)
        require(scanned.rows > 0, "backfill.input", "hold rows of a run", str(source))
        print(what_there_is_to_do(scanned, spec))
        if spec.run.dry:
            return 0
        if not scanned.to_fill:
            nothing_to_do(source, spec.backfill)
            return 0
        return fill(spec, scanned, cues, fence)


def what_there_is_to_do(scanned: Scan, spec: BackfillSpec) -> str:
    """How many rows get passes, and what else the file holds."""
    would = "would get passes" if spec.run.dry else "get passes"
    text = f"{spec.backfill.input}: {len(scanned.to_fill)} of {scanned.rows} rows {would}"
    if scanned.skipped:
        text += f"; {scanned.skipped} lack them and have no sample, problem or pass 1 to start from"
    if scanned.broken:
        text += f"; {len(scanned.broken)} undecodable lines"
    return text


def fill(spec: BackfillSpec, scanned: Scan, cues: tuple[Cue, ...], fence: Fence | None) -> int:
    """Run the traces and merge what they made into the target."""
    source, target = Path(spec.backfill.input), spec.backfill.target
    backend = build_backend(spec)
    refuse_what_it_cannot(spec, backend)
    task: Task = build("task", spec.task)
    work = target.with_name(f"{target.name}{WORKING}")
    points = points_of(spec, scanned, cues, (task, backend, work))
    merge = Merge(spec, points, keep_original(source, spec.backfill), fence)
    sessions = run_until_signal([made.point for made in points], backend, merge.on_row).sessions
    rows = merge.write()
    print(f"{rows} rows with new passes in {target}")
    states = {session.status for session in sessions}
    if states == {"complete"}:
        shutil.rmtree(work)
        return 0
    print(f"not finished: the same command goes on from {work}")
    return 1 if "failed" in states else 130


ConfigStore.instance().store(name="backfill_spec", node=BackfillSpec)
register_schema()

if __name__ == "__main__":
    sys.exit(run_application(main))
