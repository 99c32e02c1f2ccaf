"""A configuration of the fine-tuner's inferencer as an experiment: choices and values of ours."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from launch.config.words import quoted
from launch.fine_tuned.config_file import FineTunerConfig
from launch.fine_tuned.evaluation import asks_for_evaluation, evaluation_line
from launch.fine_tuned.models import model_of
from pipeline.spec import SpecError

FORBIDDEN = "$#@&*!"  # in its run names
FILES = (".jsonl", ".json", ".ndjson", ".csv", ".parquet", ".txt")
HEADER = "# Imported by launch/import_toml.py from"
_DTYPES = {"float16": "fp16", "bfloat16": "bf16", None: "none"}


@dataclass(frozen=True, slots=True)
class Experiment:
    """Options of groups, values of keys, and sentences on what the file asked for besides.

    `evaluation` is the command of the step that follows, where the file asks for one.
    """

    options: dict[str, str]
    values: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    evaluation: str | None = None

    @property
    def overrides(self) -> list[str]:
        """The same as a command line."""
        return [
            *(f"{group}={option}" for group, option in self.options.items()),
            *(f"{key}={_word(value)}" for key, value in _flat(_literal(self.values))),
        ]

    def text(self, source: Path) -> str:
        """The YAML of `conf/experiment/`."""
        defaults = [{f"override /{group}": option} for group, option in self.options.items()]
        body = OmegaConf.to_yaml(OmegaConf.create({"defaults": defaults, **_literal(self.values)}))
        then = [f"then: {self.evaluation}"] if self.evaluation else []
        notes = "".join(f"# {note}\n" for note in [*self.notes, *then])
        return f"# @package _global_\n{HEADER} {source.name}\n{notes}{body}"


def experiment_of(
    config: FineTunerConfig, model: str | None = None, without: tuple[str, ...] = ()
) -> Experiment:
    """What the inference step of a configuration is here.

    Args:
        config: the file.
        model: a folder or hub id, in place of the one that the file implies.
        without: steps (`finetuning`, `evaluation`) that the file asks for and that are left out.
            An evaluation that is not left out becomes a line for `launch/score_text.py`.

    Raises:
        SpecError: the file asks for what an inference cannot do; the message names the key.
    """
    of, where = config.inferencer, config.path
    _check_steps(config, without)
    chosen, why = (model, "as the line says") if model else model_of(of, run_name(of, None))
    quantization, precision = _quantization(where, of)
    options = {"task": "qa", "model": "local", "quantization": quantization, "backend": "hf"}
    values: dict[str, Any] = {
        "task": {
            "data": _data(of["testing_data_id"]),
            "columns": {
                "question": of["question_column"],
                "answer": of["ground_truth_column"],
                "system_prompt": of["system_prompt_column"],
            },
            "system_prompt": of["system_prompt_override_text"],
        },
        "model": {"path": chosen, "max_length": of["max_sequence_length"]},
        "sampling": {
            "temperature": of["temperature"],
            "top_p": 1.0,
            "min_p": of["min_p"],
            "max_new_tokens": of["max_new_tokens"],
        },
        "run": {
            "name": run_name(of, "inferencer"),
            "inferencer_output": "inferencer_documented",
        },
        **precision,
    }
    if not of["use_cache"]:
        values["backend"] = {"decoder": "generate", "use_cache": False}
    notes = [f"model.path={chosen}: {why}"]
    if config.mlflow:
        options["tracking"] = "mlflow"
        uri, name = config.mlflow["tracking_uri"], config.mlflow["experiment_name"]
        values["tracking"] = {"uri": uri, "experiment": name}
        notes.append("mlflow.run_name: a run is named after its folder, below run.name")
    evaluation = None
    if asks_for_evaluation(config) and "evaluation" not in without:
        evaluation = evaluation_line(config, f"outputs/{values['run']['name']}")
    return Experiment(options, values, notes, evaluation)


def run_name(of: dict[str, Any], unnamed: str | None) -> str:
    """Prefix, name and suffix, joined by underscores as the fine-tuner joins them.

    `unnamed` stands for a name that is null; None leaves it out.

    Raises:
        SpecError: a part holds a character that the fine-tuner refuses.
    """
    parts = [of["run_name_prefix"], of["run_name"] or unnamed or "", of["run_name_suffix"]]
    name = "_".join(part.strip() for part in parts if part.strip())
    if bad := [each for each in name if each in FORBIDDEN]:
        raise SpecError(f"inferencer.run_name must hold none of {FORBIDDEN}, got {bad[0]!r}")
    return name


def _check_steps(config: FineTunerConfig, without: tuple[str, ...]) -> None:
    """Refuse training, which is not ours, unless it is left out in so many words."""
    steps, where = config.pipeline, config.path
    if not steps:
        return
    for key, wrong in (("enable_inference", False), ("stop_after_finetuning", True)):
        if steps[key] is wrong:
            said = str(wrong).lower()
            raise SpecError(f"{where}: pipeline.{key}={said}: then there is no inference to import")
    if steps["enable_finetuning"] and "finetuning" not in without:
        raise SpecError(
            f"{where}: pipeline.enable_finetuning=true asks for a step that a run does not have: "
            "set it to false, or add without=finetuning to import what follows it"
        )


def _quantization(where: Path, of: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The option, and what of it the file's type changes."""
    dtype, four, eight = of["dtype"], of["load_in_4bit"], of["load_in_8bit"]
    if dtype not in _DTYPES:
        raise SpecError(f"{where}: inferencer.dtype must be float16, bfloat16 or null, got {dtype}")
    if four and eight:
        raise SpecError(
            f"{where}: inferencer.load_in_8bit must be false where load_in_4bit is true"
        )
    if not four and not eight:
        return _DTYPES[dtype], {}
    if dtype is None:
        return ("bnb_nf4" if four else "bnb_int8"), {}
    changes: dict[str, Any] = {"dtype": dtype}
    if four:
        changes["arguments"] = {"bnb_4bit_compute_dtype": dtype}
    return ("bnb_nf4" if four else "bnb_int8"), {"quantization": changes}


def _data(name: str) -> dict[str, Any]:
    """A file by its path; else a hub id, of which the inferencer reads the training split."""
    if Path(name).expanduser().is_file() or Path(name).suffix in FILES or name[:1] in "./~":
        return {"path": name}
    return {"hub": name, "split": "train"}


def _flat(values: dict[Any, Any], before: str = "") -> list[tuple[str, Any]]:
    pairs = []
    for key, value in values.items():
        inner = isinstance(value, dict)
        pairs += _flat(value, f"{before}{key}.") if inner else [(f"{before}{key}", value)]
    return pairs


def _literal(values: dict[str, Any]) -> dict[str, Any]:
    """The same with every text such that OmegaConf finds no interpolation in it."""
    return {
        key: _literal(value)
        if isinstance(value, dict)
        else re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
        if isinstance(value, str)
        else value
        for key, value in values.items()
    }


def _word(value: Any) -> str:
    """A value as Hydra's command line takes it."""
    if isinstance(value, str):
        return quoted(value)
    return "null" if value is None else json.dumps(value)
