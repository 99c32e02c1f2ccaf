"""Predictions judged by a model: ordinary runs of the tasks in `conf/task/judge/`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from launch.api import compose, open_backend, point_of
from launch.config.command_line import arguments
from launch.config.setup import RunSetup
from launch.config.words import CONF, quoted
from launch.running.here import run_ready
from launch.scoring.predictions import Prediction, as_records
from launch.scoring.scores import CORRECTNESS, MATCHES, OVERLAPS, SIMILARITY, Column
from pipeline.run.point import Point
from pipeline.spec import SpecError
from pipeline.store.files import Row, encode, write_atomically
from pipeline.store.row_index import read_rows

FOLDER = "judge"  # of conf/task/
JUDGES = tuple(sorted(path.stem for path in (CONF / "task" / FOLDER).glob("*.yaml")))
BY_TEXT = (*MATCHES, *OVERLAPS)
METRICS = (*BY_TEXT, SIMILARITY, CORRECTNESS, *JUDGES)


def needs_judge(metric: str) -> bool:
    """Whether a metric needs a model that judges."""
    return metric not in (*BY_TEXT, SIMILARITY)


@dataclass(slots=True)
class Judgements:
    """What one judge said: by the key of a prediction, each judgement and its score.

    A judge that `writes_questions` gives no score, but 0 where an answer is evasive. `unread`
    counts judgements that do not end as they should, `missing` predictions that were not judged, or
    not as often as asked: the run failed on them, ended before or has a limit. `usd` is None where
    the cost is not known.
    """

    folder: Path
    writes_questions: bool
    by_key: dict[str, list[tuple[Any, float | None]]] = field(default_factory=dict)
    unread: int = 0
    missing: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    usd: float | None = 0.0

    def column(self, rows: Sequence[Prediction]) -> Column:
        """The mean score of each prediction over its judgements; None without any."""
        scores = [[s for _, s in self.by_key.get(row.key, ()) if s is not None] for row in rows]
        return [fmean(each) if each else None for each in scores]

    def questions(self, row: Prediction) -> list[list[str]]:
        """The questions of each judgement; none where the answer is evasive."""
        return [[] if score == 0 else asked for asked, score in self.by_key.get(row.key, ())]

    def column_of_readings(self, rows: Sequence[Prediction]) -> list[Any]:
        """What was read of the judgements of each prediction."""
        return [[judgement for judgement, _ in self.by_key.get(row.key, ())] for row in rows]


def judge(
    names: Sequence[str],
    rows: Sequence[Prediction],
    overrides: Sequence[str],
    out: Path,
    embeds: bool,
) -> tuple[dict[str, Judgements], int]:
    """Run judges over predictions, or go on with what earlier runs wrote; 0, 1 or 130 as a run.

    They share one backend and run side by side. `overrides` choose it as on the command line of
    `launch/run.py`; run folders lie in `out`. `embeds` says that questions can be compared.

    Raises:
        SpecError: no row can be judged, or what a run with these settings would refuse.
    """
    setups = [_setup(name, overrides, out) for name in names]
    for name, setup in zip(names, setups, strict=True):
        if setup.spec.task.get("reading") == "questions" and not embeds:
            raise SpecError(f"{name} compares sentence embeddings: name a model with --embedding")
    asked = [_judgeable(setup, rows) for setup in setups]
    for name, judged in zip(names, asked, strict=True):
        if not judged:
            raise SpecError(f"{name} compares with a reference, and no prediction has one")
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(_input(name, out), map(encode, as_records(judged)))
    backend = open_backend(setups[0])
    points = [point_of(setup, backend) for setup in setups]
    outcome = run_ready(points, backend, [setup.config_text for setup in setups])
    found = zip(names, points, asked, strict=True)
    return {name: _read(point, judged) for name, point, judged in found}, outcome.status


def _setup(name: str, overrides: Sequence[str], out: Path) -> RunSetup:
    """The run of one judge over the file that is written for it."""
    words = arguments(overrides)
    if not any(word.startswith("sampling=") for word in words):
        words = ["sampling=greedy", *words]
    path = quoted(str(_input(name, out).absolute()))
    return compose(
        *(f"task={FOLDER}/{name}", f"task.data.path={path}"),
        *(f"run.root={quoted(str(out))}", "run.name=judges", *words),
    )


def _input(name: str, out: Path) -> Path:
    return out / f"{name}_input.jsonl"


def _judgeable(setup: RunSetup, rows: Sequence[Prediction]) -> list[Prediction]:
    """The predictions that have what the judge's prompt shows."""
    needed = "{reference}" in str(setup.spec.task.get("user_prompt"))
    return [row for row in rows if row.references or not needed]


def _read(point: Point, asked: Sequence[Prediction]) -> Judgements:
    found = Judgements(point.folder, point.spec.task.get("reading") == "questions")
    seen: Counter[str] = Counter()
    for row in read_rows(point.rows_path) if point.rows_path.exists() else ():
        seen[row["example_id"]] += 1
        _count(row, found)
        fields = row["pass1"]
        if fields.get("judgement") is None:
            found.unread += 1
        else:
            judged = (fields["judgement"], fields["judge_score"])
            found.by_key.setdefault(row["example_id"], []).append(judged)
    wanted = point.spec.sampling.num_samples
    found.missing = sum(seen[row.key] < wanted for row in asked)
    return found


def _count(row: Row, found: Judgements) -> None:
    """Add the tokens and the cost of a row: as the service counted them, else by their ids."""
    usage, fields = row.get("usage") or {}, row["pass1"]
    found.input_tokens += usage.get("prompt_tokens") or fields.get("prompt_tokens") or 0
    found.output_tokens += usage.get("completion_tokens") or fields.get("tokens_total") or 0
    spent = row.get("cost_usd")
    if spent is None or found.usd is None:
        found.usd = None
    else:
        found.usd += spent + (row.get("discarded_usd") or 0.0)
