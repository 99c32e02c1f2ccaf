"""Trackio: a local database by default; `space` shares it on the hub."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from components.tracking.library import installed
from pipeline.protocols import DataSet, Param


class Trackio:
    """One run per point."""

    def __init__(
        self,
        project: str,
        folder: str,
        space: str | None = None,
        report: bool = True,
        rows: bool = False,
    ) -> None:
        """Nothing is loaded or written yet. SpecError without the library."""
        installed("trackio", "tracking")
        self.project, self.folder, self.space = project, folder, space
        self.report, self.rows = report, rows
        self._run: Any = None

    def start(self, name: str, params: Mapping[str, Param], tags: Mapping[str, str]) -> None:
        """Create the run. The folder is read by the library once, when it is first loaded."""
        os.environ.setdefault("TRACKIO_DIR", str(Path(self.folder).absolute()))
        import trackio

        self._run = trackio.init(
            project=self.project,
            name=name,
            config=dict(params) | dict(tags),
            space_id=self.space,
            embed=False,
            auto_log_gpu=False,
        )

    def use(self, data_set: DataSet) -> None:
        """Nothing: Trackio keeps no data sets, and its config has `task.data`."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Metrics at a training step."""
        self._run.log(dict(metrics), step=step)

    def attach(self, path: Path) -> None:
        """A file as an artifact."""
        import trackio

        artifact = trackio.Artifact(path.stem, type="result")
        artifact.add_file(str(path))
        self._run.log_artifact(artifact)

    def finish(self, status: str) -> None:
        """End the run."""
        self._run.finish()
