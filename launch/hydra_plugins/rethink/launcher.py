"""Hydra's side of a sweep. Hydra takes launchers from the `hydra_plugins` namespace only.

The launcher of 2022 (hydra-submitit-launcher) is not used: it runs one job per list of overrides,
loses a job's traceback and every rank but the first, waits for ever for a preempted job, and knows
neither packs nor shards nor what is already done. What remained to share was its call of submitit.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import OmegaConf, read_write


class ClusterLauncher(BasicLauncher):
    """Hands the points of a sweep to `launch.sweeps`; other applications run as Hydra does it."""

    def __init__(self, **options: Any) -> None:
        """Keep the options of `launch.config.cluster.Cluster`."""
        super().__init__()
        self._options = {
            key: OmegaConf.to_container(value, resolve=True)
            if OmegaConf.is_config(value)
            else value
            for key, value in options.items()
        }

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run a sweep; ends the process with its status unless every row is there."""
        from launch.sweeps.sweep import (  # plugins are scanned by every Hydra program
            MARK,
            run_sweep,
        )

        assert self.hydra_context is not None and self.config is not None
        if not getattr(self.task_function, MARK, False):
            if self._options["where"] != "here":
                sys.exit("error: only the points of launch/run.py can be sent to a cluster")
            return super().launch(job_overrides, initial_job_idx)
        status = run_sweep(self.hydra_context, self.config, job_overrides, self._options)
        if status:
            sys.exit(status)
        done = []
        for overrides in job_overrides:
            done.append(JobReturn(overrides=overrides, status=JobStatus.COMPLETED))
        return done


class PointSweeper(BasicSweeper):
    """Hydra's grid, but the launcher composes every point anyway: once is enough."""

    def sweep(self, arguments: list[str]) -> Any:
        """Run the grid; with `run.dry` or `run.plan` no file is written.

        Raises:
            StoreError: the sweep's folder cannot be written.
        """
        from launch.running.files import writing

        assert self.config is not None
        if any(OmegaConf.select(self.config, f"run.{name}") for name in ("dry", "plan")):
            return self._launch_without_files(arguments)
        with writing(Path(self.config.hydra.sweep.dir)):
            pass
        return super().sweep(arguments)

    def _launch_without_files(self, arguments: Sequence[str]) -> Any:
        """Launch from where the command was typed: Hydra's own launcher makes the sweep's folder.

        It takes the folder from this config, and from those that it composes by these overrides.
        """
        assert self.hydra_context is not None and self.launcher is not None
        assert self.config is not None
        with read_write(self.config):
            self.config.hydra.sweep.dir = self.config.hydra.sweep.subdir = "."
            self.config.hydra.overrides.hydra += ["hydra.sweep.dir=.", "hydra.sweep.subdir=."]
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        overrides = parser.parse_overrides([*self._parse_config(), *arguments])
        batches = self.split_arguments(overrides, self.max_batch_size)
        return [self.launcher.launch(batch, initial_job_idx=0) for batch in batches]

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Left to the launcher, which names the point that does not compose."""
