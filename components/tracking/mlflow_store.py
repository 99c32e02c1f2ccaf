"""MLflow: a folder of files by default, or any tracking server."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from components.tracking.library import installed
from pipeline.protocols import DataSet, Param

FILES = "MLFLOW_ALLOW_FILE_STORE"  # newer versions keep folders of files only when told so
DIGEST = 36  # characters of a hash that it takes
CONTEXT = "mlflow.data.context"  # the tag that says what a data set is to a run
LONGEST = 500  # characters of a parameter; servers refuse much longer ones
FAILED = ("failed", "interrupted")


class MLflow:
    """One MLflow run per point. `uri`: a folder, or `http://...` or `sqlite:///...`."""

    def __init__(self, uri: str, experiment: str, report: bool = True, rows: bool = False) -> None:
        """Nothing is loaded or written yet. SpecError without the library."""
        installed("mlflow", "tracking")
        self.uri = uri if "://" in uri else Path(uri).absolute().as_uri()
        self.experiment = experiment
        self.report, self.rows = report, rows
        self._client: Any = None
        self._run = ""

    def start(self, name: str, params: Mapping[str, Param], tags: Mapping[str, str]) -> None:
        """Create the run."""
        if self.uri.startswith("file:"):
            os.environ.setdefault(FILES, "true")
        from mlflow.entities import Param as Parameter
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(self.uri)
        found = self._client.get_experiment_by_name(self.experiment)
        number = found.experiment_id if found else self._client.create_experiment(self.experiment)
        run = self._client.create_run(number, run_name=name, tags=dict(tags))
        self._run = run.info.run_id
        logged = [Parameter(key, str(value)[:LONGEST]) for key, value in params.items()]
        for start in range(0, len(logged), 100):  # the most that a request may hold
            self._client.log_batch(self._run, params=logged[start : start + 100])

    def use(self, data_set: DataSet) -> None:
        """A data set among the run's inputs, its role as the context."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        kind, source = _source(data_set.source)
        kept = Dataset(
            name=data_set.name[:LONGEST],
            digest=data_set.digest[:DIGEST],
            source_type=kind,
            source=json.dumps(source),
            profile=json.dumps({"num_rows": data_set.rows}),
        )
        given = DatasetInput(kept, [InputTag(CONTEXT, data_set.role)])
        self._client.log_inputs(self._run, [given])

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Metrics at a training step."""
        for name, value in metrics.items():
            self._client.log_metric(self._run, name, value, step=step)

    def attach(self, path: Path) -> None:
        """A file as an artifact."""
        self._client.log_artifact(self._run, str(path))

    def finish(self, status: str) -> None:
        """End the run."""
        self._client.set_terminated(self._run, "FAILED" if status in FAILED else "FINISHED")


def _source(source: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """The type and the keys that `mlflow.data` reads sources by."""
    if "hub" in source:
        rest = {"config_name": source.get("config")}
        rest |= {name: source.get(name) for name in ("split", "revision")}
        return "hugging_face", {"path": source["hub"], **rest}
    if "path" in source:
        return "local", {"uri": str(Path(source["path"]).absolute())}
    return "code", {"tags": {}}
