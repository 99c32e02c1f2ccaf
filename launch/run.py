"""The main door: `python launch/run.py task=crossword backend=hf sampling.temperature=0.3`."""

import os

os.environ.setdefault(
    "OMP_WAIT_POLICY", "passive"
)  # before torch: spinning waits stall a busy machine

import signal
import sys

if __name__ == "__main__":
    # Ctrl-C while libraries load ends the process as it ends any other, without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from launch.config.command_line import ended, run_application
from launch.config.compose import build_backend, build_point, register_schema, to_spec
from launch.running.dry_run import PlannedPoint, show_dry_run
from launch.running.here import run_ready
from launch.sweeps.points import missing_rows
from launch.sweeps.sweep import of_points
from pipeline.protocols import Backend
from pipeline.run.point import Point
from pipeline.spec import require


@hydra.main(version_base="1.3", config_path="../conf", config_name="config")
@of_points
def main(config: DictConfig) -> None:
    """Run one point; the points of a sweep are run by the cluster's launcher."""
    if status := ended(lambda: run_config(config)):
        sys.exit(status)


def run_config(config: DictConfig) -> int:
    """Run what a composed config says. Returns the exit status."""
    spec = to_spec(config)
    for key in ("plan", "manifest"):
        value = getattr(spec.run, key)
        require(not value, f"run.{key}", "be left out, or -m added: it is about a sweep", value)
    hydra_config = HydraConfig.get()
    choices: dict[str, Any] = dict(hydra_config.runtime.choices)
    backend = build_backend(spec)
    point = build_point(spec, backend, hydra_config.overrides.task, choices)
    if spec.run.dry:
        show_dry_run([PlannedPoint(point, backend, missing_rows(point))])
        return 0
    return run_points([point], backend, {point.folder: config})


def run_points(points: list[Point], backend: Backend, configs: dict[Any, DictConfig]) -> int:
    """Run points that share a backend. Returns 0, 1 (a trace failed) or 130 (interrupted)."""
    texts = [OmegaConf.to_yaml(configs[point.folder]) for point in points]
    return run_ready(points, backend, texts).status


register_schema()

if __name__ == "__main__":
    sys.exit(run_application(main))
