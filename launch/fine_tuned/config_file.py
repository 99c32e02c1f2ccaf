"""The fine-tuner's TOML file: read, its `${NAME}` and "null" replaced, its keys checked."""

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pipeline.spec import SpecError

NAME_KEYS = {"run_name": str | None, "run_name_prefix": str, "run_name_suffix": str}
SECTIONS: dict[str, dict[str, Any]] = {
    "inferencer": {
        "max_sequence_length": int,
        "dtype": str | None,
        "load_in_4bit": bool,
        "load_in_8bit": bool,
        "testing_data_id": str,
        "question_column": str,
        "ground_truth_column": str | None,
        "system_prompt_column": str | None,
        "system_prompt_override_text": str | None,
        "max_new_tokens": int,
        "use_cache": bool,
        "temperature": float,
        "min_p": float,
        "hf_user_id": str | None,
        **NAME_KEYS,
    },
    "pipeline": {
        "enable_finetuning": bool,
        "enable_inference": bool,
        "enable_evaluation": bool,
        "stop_after_finetuning": bool,
        "stop_after_inference": bool,
    },
    "mlflow": {"tracking_uri": str, "experiment_name": str, **NAME_KEYS},
}
EVALUATOR = {
    "metrics": list[str],
    "llm": str | None,
    "embedding": str | None,
    "cost_per_million_input_tokens": float,
    "cost_per_million_output_tokens": float,
    "hf_user_id": str | None,
    **NAME_KEYS,
}
OTHERS = ("fine_tuner", "evaluator")  # sections of its other steps, which an inference leaves alone
_ENVIRONMENT = re.compile(r"\$\{(\w+)\}")
_WORDS: dict[Any, str] = {
    **{int: "a whole number", float: "a number", bool: "true or false", str: "text"},
    list[str]: "a list of texts",
}


@dataclass(frozen=True, slots=True)
class FineTunerConfig:
    """What a file says; `mlflow` and `pipeline` are empty where it has no such section."""

    path: Path
    inferencer: dict[str, Any]
    pipeline: dict[str, Any] = field(default_factory=dict)
    mlflow: dict[str, Any] = field(default_factory=dict)


def read_config(path: Path, environment: Mapping[str, str] | None = None) -> FineTunerConfig:
    """Read a file. A value that is `${NAME}` as a whole becomes that environment variable.

    Raises:
        SpecError: no such file, no TOML, a variable that is not set, a section or key that is
            unknown or missing, or a value of another kind; the message names file and key.
    """
    given = _read(path)
    if unknown := [name for name in given if name not in (*SECTIONS, *OTHERS)]:
        raise SpecError(f"{path} has an unknown section {_near(unknown[0], [*SECTIONS, *OTHERS])}")
    if "inferencer" not in given:
        raise SpecError(f"{path} must have a section [inferencer]; it has {', '.join(given)}")
    variables = os.environ if environment is None else environment
    sections = {
        name: _section(path, name, given[name], variables) for name in SECTIONS if name in given
    }
    return FineTunerConfig(path, **sections)


def read_evaluator(path: Path, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The section `[evaluator]` of a file, which is checked only where its evaluation is asked for.

    Raises:
        SpecError: as `read_config`.
    """
    given = _read(path)
    if "evaluator" not in given:
        raise SpecError(
            f"{path} must have a section [evaluator] for pipeline.enable_evaluation=true; it has "
            f"{', '.join(given)}"
        )
    variables = os.environ if environment is None else environment
    return _section(path, "evaluator", given["evaluator"], variables)


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"{path} is no TOML: {error}") from error


def _section(
    path: Path, section: str, values: object, environment: Mapping[str, str]
) -> dict[str, Any]:
    kinds: dict[str, Any] = EVALUATOR if section == "evaluator" else SECTIONS[section]
    if not isinstance(values, dict):
        raise SpecError(f"{path}: {section} must be a section, got {values!r}")
    if unknown := [key for key in values if key not in kinds]:
        raise SpecError(f"{path}: [{section}] has an unknown key {_near(unknown[0], list(kinds))}")
    if missing := [key for key in kinds if key not in values]:
        raise SpecError(
            f"{path}: [{section}] lacks {', '.join(missing)}: the fine-tuner has no defaults; "
            'write "null" for what is not set'
        )
    return {
        key: _value(f"{path}: {section}.{key}", values[key], kind, environment)
        for key, kind in kinds.items()
    }


def _near(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, 1)
    return f"{name}: did you mean {close[0]}?" if close else f"{name}; there are {', '.join(known)}"


def _value(where: str, given: object, kind: Any, environment: Mapping[str, str]) -> Any:
    """The value of a key in its kind; text of the environment is read as the kind asks."""
    if kind == list[str]:
        if not isinstance(given, list) or not given or not all(isinstance(v, str) for v in given):
            raise SpecError(f"{where} must be {_WORDS[kind]}, one or more, got {given!r}")
        return given
    optional = type(None) in getattr(kind, "__args__", ())
    plain: Any = str if optional else kind
    value = given
    if isinstance(given, str) and (found := _ENVIRONMENT.fullmatch(given)):
        if found[1] not in environment:
            raise SpecError(f"{where} is {given}, and the environment has no {found[1]}: set it")
        value = _parsed(environment[found[1]], plain)
    if value == "null":
        value = None
    if plain is float and type(value) is int:
        value = float(value)
    if type(value) is plain or (value is None and optional):
        return value
    said = f"{_WORDS[plain]} or null" if optional else _WORDS[plain]
    raise SpecError(f"{where} must be {said}, got {given!r}")


def _parsed(text: str, kind: Any) -> object:
    """Text of the environment as a TOML value, where the key does not hold text."""
    if kind is str:
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
