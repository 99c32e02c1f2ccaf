"""Scores told to a tracker of `conf/tracking/`: metrics as `eval_rouge_score`, and the files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launch.api import compose
from launch.config.command_line import arguments
from launch.config.compose import build
from launch.running.tracking import PATIENCE, TrackerThread
from launch.scoring import files
from pipeline.protocols import Tracker
from pipeline.spec import SpecError


def tracker_of(overrides: Sequence[str]) -> Tracker:
    """The tracker that overrides such as `tracking=mlflow` choose. Raises SpecError."""
    setup = compose("task=prompts", "backend=echo", *arguments(overrides))
    if not setup.spec.tracking:
        raise SpecError("--tracking must choose a tracker: tracking=mlflow, wandb or trackio")
    tracker: Tracker = build("tracking", setup.spec.tracking)
    return tracker


def track(
    tracker: Tracker, name: str, params: Mapping[str, str], whole: Mapping[str, Any], out: Path
) -> None:
    """Tell of means, of what they were computed with, and of the summary and the spreadsheet."""
    thread = TrackerThread(tracker)
    means = {f"eval_{key}": v for key, v in whole.items() if isinstance(v, float)}
    thread.tell(lambda: tracker.start(name, params, {"folder": str(out)}))
    thread.tell(lambda: tracker.log(means, 0))
    for file in (files.SUMMARY, files.SHEET):
        thread.tell(lambda path=out / file: tracker.attach(path))  # type: ignore[misc]
    thread.close("complete", PATIENCE)
