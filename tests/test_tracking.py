"""tracking=mlflow, wandb and trackio with the real libraries; one that is down stops no run."""

import hashlib
import importlib.util
import json
import sqlite3
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from launch import api
from launch.config.compose import to_spec
from launch.config.setup import setup_of
from launch.running import tracking
from launch.score_text import main as score_text
from pipeline.protocols import DataSet
from pipeline.run.session import Session
from pipeline.spec import SpecError
from tests.fakes.configs import composed


def needs(library: str) -> pytest.MarkDecorator:
    there = importlib.util.find_spec(library) is not None
    return pytest.mark.skipif(not there, reason=f"{library} is not installed: extra tracking")


def run(tmp_path: Path, *overrides: str) -> tuple[int, Path]:
    """A small echo run; its status and its folder."""
    line = ["task=crossword", "backend=echo", "cue=wait", "run.limit=3", *overrides]
    outcome = api.run(setup_of(composed(*line, f"run.root={tmp_path}", "run.name=tracked"), line))
    return outcome.status, outcome.folder


@needs("mlflow")
def test_mlflow_keeps_parameters_metrics_and_files_in_a_folder(tmp_path: Path) -> None:
    status, folder = run(tmp_path, "tracking=mlflow", "sampling.temperature=0.3")
    assert status == 0
    from mlflow.tracking import MlflowClient

    client = MlflowClient((tmp_path / "mlruns").as_uri())
    [found] = client.search_runs([client.get_experiment_by_name("rethink").experiment_id])
    rows = [json.loads(line) for line in next(folder.glob("step*.jsonl")).open()]
    assert found.data.params["sampling.temperature"] == "0.3"
    assert found.data.tags["fingerprint"] == rows[0]["fingerprint"]
    mean = sum(row["pass1"]["entropy"] for row in rows) / 3
    assert found.data.metrics["pass1/entropy"] == pytest.approx(mean)
    assert found.data.metrics["pass2/rows"] == 3
    assert found.info.status == "FINISHED"
    files = {item.path for item in client.list_artifacts(found.info.run_id)}
    assert files == {"steps.csv", "passes.csv", "run.json", "report.html"}


@needs("mlflow")
def test_mlflow_keeps_what_was_asked_and_what_was_written_as_data_sets(tmp_path: Path) -> None:
    data = tmp_path / "questions.jsonl"
    data.write_text('{"question": "Why?", "answer": "so"}\n{"question": "Who?", "answer": "me"}\n')
    line = ["task=qa", "backend=echo", f"task.data.path={data}", f"run.root={tmp_path}"]
    line += ["run.limit=1", "tracking=mlflow", "tracking.report=false", "tracking.rows=true"]
    outcome = api.run(api.compose(*line))
    from mlflow.tracking import MlflowClient

    client = MlflowClient((tmp_path / "mlruns").as_uri())
    [found] = client.search_runs([client.get_experiment_by_name("rethink").experiment_id])
    inputs = client.get_run(found.info.run_id).inputs.dataset_inputs
    kept = {tag.value: given.dataset for given in inputs for tag in given.tags}
    assert set(kept) == {"testing", "inference_output"}
    asked, written = kept["testing"], kept["inference_output"]
    assert asked.name == "questions.jsonl" and asked.source_type == "local"
    assert json.loads(asked.source) == {"uri": str(data)}
    assert outcome.point.identity["task.data"].startswith(asked.digest)
    content = outcome.point.rows_path.read_bytes()
    assert hashlib.sha256(content).hexdigest().startswith(written.digest)
    assert [json.loads(kept[role].profile)["num_rows"] for role in kept] == [1, 1]
    files = {item.path for item in client.list_artifacts(found.info.run_id)}
    assert outcome.point.rows_path.name in files


@needs("mlflow")
def test_mlflow_keeps_scores_of_texts(tmp_path: Path) -> None:
    path = tmp_path / "said.jsonl"
    path.write_text(
        '{"response": "so", "reference": "so"}\n{"response": "no", "reference": "so"}\n'
    )
    line = [str(path), "--out", str(tmp_path / "out"), "--metrics", "exact_match"]
    assert score_text([*line, "--tracking", "tracking=mlflow", f"run.root={tmp_path}"]) == 0
    from mlflow.tracking import MlflowClient

    client = MlflowClient((tmp_path / "mlruns").as_uri())
    [found] = client.search_runs([client.get_experiment_by_name("rethink").experiment_id])
    assert found.data.metrics == {"eval_exact_match": 0.5}
    files = {item.path for item in client.list_artifacts(found.info.run_id)}
    assert files == {"evaluator_output_summary.json", "evaluator_output_detailed.xlsx"}
    assert found.info.status == "FINISHED"


def test_a_set_of_the_hub_is_told_with_its_revision() -> None:
    from components.tracking.mlflow_store import _source

    kind, source = _source({"hub": "owner/set", "split": "test", "revision": "abc"})
    assert kind == "hugging_face"
    assert source == {"path": "owner/set", "config_name": None, "split": "test", "revision": "abc"}
    assert _source({}) == ("code", {"tags": {}})


@needs("wandb")
def test_wandb_writes_an_offline_run(tmp_path: Path) -> None:
    status, _ = run(tmp_path, "tracking=wandb", "tracking.report=false")
    assert status == 0
    [offline] = (tmp_path / "wandb").glob("offline-run-*")
    [record] = offline.glob("*.wandb")
    content = record.read_bytes()
    assert b"pass1/accuracy" in content and b"sampling.temperature" in content
    assert {path.name for path in (offline / "files").rglob("*.csv")} == {"steps.csv", "passes.csv"}


@needs("trackio")
def test_trackio_writes_a_local_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACKIO_DIR", raising=False)
    status, _ = run(tmp_path, "tracking=trackio", "tracking.report=false")
    assert status == 0
    with sqlite3.connect(tmp_path / "trackio/rethink.db") as database:
        [metrics] = [
            json.loads(text) for (text,) in database.execute("select metrics from metrics")
        ]
        config = database.execute("select config from configs").fetchall()
    assert metrics["pass1/rows"] == 3
    assert "sampling.temperature" in str(config)


class Scripted:
    """A tracker whose methods do what a test says."""

    def __init__(self, **acts: Callable[..., None]) -> None:
        self.report = self.rows = False
        self.acts = acts
        self.heard: list[str] = []
        self.seen: dict[str, str] = {}

    def _hear(self, name: str, *given: Any) -> None:
        self.heard.append(name)
        self.acts.get(name, lambda *a: None)(*given)

    def start(self, name: str, params: Mapping[str, Any], tags: Mapping[str, str]) -> None:
        self._hear("start")

    def use(self, data_set: DataSet) -> None:
        self._hear(f"use {data_set.role}")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._hear("log")

    def attach(self, path: Path) -> None:
        self.seen[path.name] = path.read_text()
        self._hear("attach")

    def finish(self, status: str) -> None:
        self._hear(f"finish {status}")


def with_tracker(monkeypatch: pytest.MonkeyPatch, tracker: Scripted) -> str:
    monkeypatch.setattr(tracking, "build", lambda group, node: tracker)
    return "tracking=mlflow"


def warnings_of(folder: Path) -> list[str]:
    lines = (folder / "log.txt").read_text().splitlines()
    return [line for line in lines if "tracking by" in line]


def test_a_tracker_hears_of_the_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = Scripted()
    assert run(tmp_path, with_tracker(monkeypatch, tracker))[0] == 0
    told = ["start", "use testing", "use inference_output", "log", *["attach"] * 3]
    assert tracker.heard == [*told, "finish complete"]
    assert tracker.seen["steps.csv"].startswith("step,n1S,acc1S_pct")


@pytest.mark.parametrize("where", ["start", "use testing", "log", "attach", "finish complete"])
def test_a_tracker_that_fails_costs_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def fail(*given: Any) -> None:
        raise ConnectionError("nobody there")

    tracker = Scripted(**{where: fail})
    status, folder = run(tmp_path, with_tracker(monkeypatch, tracker))
    assert status == 0
    assert tracker.heard[-1] == where  # what is lost is not asked again
    [warning] = warnings_of(folder)
    assert "nobody there" in warning and "the run is not" in warning


def test_a_tracker_that_hangs_costs_its_patience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "PATIENCE", 0.3)
    tracker = Scripted(start=lambda *given: time.sleep(5))
    begun = time.monotonic()
    status, folder = run(tmp_path, with_tracker(monkeypatch, tracker))
    assert status == 0 and time.monotonic() - begun < 4
    assert "did not answer for 0.3 seconds" in warnings_of(folder)[0]


def test_an_interrupted_run_does_not_wait_for_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = Scripted()
    monkeypatch.setattr(Session, "status", "interrupted")
    assert run(tmp_path, with_tracker(monkeypatch, tracker))[0] == 130
    assert tracker.heard == ["start", "use testing", "finish interrupted"]


@needs("mlflow")
def test_an_mlflow_server_that_is_down_stops_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    down = "tracking.uri=http://127.0.0.1:9"
    status, folder = run(tmp_path, "tracking=mlflow", down, "tracking.report=false")
    assert status == 0
    assert len(warnings_of(folder)) == 1


def test_a_missing_library_is_named_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from components.tracking import library

    monkeypatch.setattr(library, "find_spec", lambda name: None)
    with pytest.raises(SpecError, match="needs the package wandb.*tracking=none"):
        run(tmp_path, "tracking=wandb")
    assert not list(tmp_path.rglob("step*.jsonl"))


@pytest.mark.parametrize("option", ["mlflow", "wandb", "trackio"])
def test_a_misspelt_setting_is_refused(option: str) -> None:
    config = composed("task=crossword", "backend=echo", f"tracking={option}", "+tracking.prject=x")
    with pytest.raises(SpecError, match="tracking.prject is not a setting"):
        to_spec(config)
