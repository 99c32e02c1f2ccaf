"""The main door: `python launch/run.py task=crossword backend=hf sampling.temperature=0.3`."""

import os

from launch.config.interrupts import guard

if __name__ == "__main__":
    guard()  # before libraries load
os.environ.setdefault(
    "OMP_WAIT_POLICY", "passive"
)  # before torch: spinning waits stall a busy machine

import sys

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from launch.api import open_backend, point_of, run
from launch.config.command_line import ended, run_application
from launch.config.compose import register_schema
from launch.config.setup import setup_of
from launch.running.dry_run import PlannedPoint, show_dry_run
from launch.running.here import follow_rank_0
from launch.sweeps.points import missing_rows
from launch.sweeps.sweep import of_points
from pipeline.spec import require


@hydra.main(version_base="1.3", config_path="../conf", config_name="config")
@of_points
def main(config: DictConfig) -> None:
    """Run one point; the points of a sweep are run by the cluster's launcher."""
    if status := ended(lambda: run_config(config)):
        sys.exit(status)


def run_config(config: DictConfig) -> int:
    """Run what a composed config says. Returns the exit status."""
    hydra_config = HydraConfig.get()
    setup = setup_of(config, hydra_config.overrides.task, dict(hydra_config.runtime.choices))
    for key in ("plan", "manifest"):
        value = getattr(setup.spec.run, key)
        require(not value, f"run.{key}", "be left out, or -m added: it is about a sweep", value)
    backend = open_backend(setup)
    if setup.spec.run.dry and backend.follows:
        return follow_rank_0(backend, setup.spec.run.shards)
    if setup.spec.run.dry:
        point = point_of(setup, backend)
        show_dry_run([PlannedPoint(point, backend, missing_rows(point))])
        backend.dismiss()
        return 0
    return run(setup, backend).status


register_schema()

if __name__ == "__main__":
    sys.exit(run_application(main))
