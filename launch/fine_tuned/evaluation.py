"""The evaluation step of a fine-tuner's configuration as a line of `launch/score_text.py`."""

import shlex
from typing import Any

from launch.fine_tuned.config_file import FineTunerConfig, read_evaluator
from launch.scoring.judged import METRICS, needs_judge
from launch.scoring.scores import BY_EMBEDDING
from pipeline.spec import SpecError

DOOR = "python launch/score_text.py"


def asks_for_evaluation(config: FineTunerConfig) -> bool:
    """Whether the file's pipeline goes on to its evaluation."""
    steps = config.pipeline
    return bool(steps) and steps["enable_evaluation"] and not steps["stop_after_inference"]


def evaluation_line(config: FineTunerConfig, folder: str) -> str:
    """The command that scores the rows below `folder` by the file's section `[evaluator]`.

    Its `llm` judges through OpenAI's door, as the fine-tuner's does; its `embedding` is a folder or
    hub id of Sentence Transformers, since embeddings are computed here.

    Raises:
        SpecError: the section is missing or wrong, or asks for a metric that there is not.
    """
    of, where = read_evaluator(config.path), config.path
    metrics = list(dict.fromkeys(of["metrics"]))
    for name in metrics:
        if name not in METRICS:
            raise SpecError(
                f"{where}: evaluator.metrics must hold names of {', '.join(METRICS)}, got {name}: "
                "take it out, or import with without=evaluation"
            )
    words = [folder, "--metrics", *metrics]
    if {*metrics} & {*BY_EMBEDDING}:
        words += ["--embedding", _named(config, of, "embedding", "compares sentence embeddings")]
    if any(map(needs_judge, metrics)):
        llm = _named(config, of, "llm", "is judged by a model")
        words += ["--judge", "backend=openai", f"backend.deployment={llm}"]
        for kind in ("input", "output"):
            price = of[f"cost_per_million_{kind}_tokens"]
            words += [f"--cost-per-million-{kind}-tokens", str(price)]
    if config.mlflow:
        uri, name = config.mlflow["tracking_uri"], config.mlflow["experiment_name"]
        words += ["--tracking", "tracking=mlflow", f"tracking.uri={uri}"]
        words += [f"tracking.experiment={name}"]
    return f"{DOOR} {shlex.join(words)}"


def _named(config: FineTunerConfig, of: dict[str, Any], key: str, why: str) -> str:
    if of[key] is None:
        raise SpecError(f"{config.path}: evaluator.{key} must be set: one of its metrics {why}")
    return str(of[key])
