"""Weights & Biases: offline by default; `wandb sync` sends what it wrote."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from components.tracking.library import installed
from pipeline.protocols import DataSet, Param
from pipeline.spec import require

MODES = ("offline", "online", "disabled")


class Wandb:
    """One run per point. `mode`: offline, online or disabled."""

    def __init__(
        self,
        project: str,
        folder: str,
        mode: str = "offline",
        entity: str | None = None,
        report: bool = True,
        rows: bool = False,
    ) -> None:
        """Nothing is loaded or written yet. SpecError without the library."""
        installed("wandb", "tracking")
        require(mode in MODES, "tracking.mode", f"be one of {', '.join(MODES)}", mode)
        self.project, self.folder, self.entity = project, folder, entity
        self.mode: Any = mode
        self.report, self.rows = report, rows
        self._run: Any = None

    def start(self, name: str, params: Mapping[str, Param], tags: Mapping[str, str]) -> None:
        """Create the run."""
        import wandb

        Path(self.folder).mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=self.project,
            entity=self.entity,
            name=name,
            config=dict(params) | dict(tags),
            dir=self.folder,
            mode=self.mode,
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off", disable_git=True),
        )

    def use(self, data_set: DataSet) -> None:
        """A data set in the run's config."""
        about = asdict(data_set) | {"source": dict(data_set.source)}
        self._run.config.update({f"data.{about.pop('role')}": about})

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Metrics at a training step."""
        self._run.log(dict(metrics) | {"training_step": step})

    def attach(self, path: Path) -> None:
        """A file of the run."""
        self._run.save(str(path), base_path=str(path.parent), policy="now")

    def finish(self, status: str) -> None:
        """End the run."""
        self._run.finish(exit_code=0 if status in ("complete", "shared") else 1)
