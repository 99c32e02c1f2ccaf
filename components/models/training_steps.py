"""Picks one training step out of a folder of checkpoints."""

import json
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.models.zero_folder import LATEST, named_latest
from pipeline.spec import MissingCheckpointError, SpecError

_LOG = logging.getLogger(__name__)
_STEP_FOLDER = re.compile(r"(?:checkpoint|global_step|step)[-_]?(\d+)")
_BEST_FOLDERS = ("best", "best_model")
_BEST_FILE = "checkpoint-best.pt"
_STATE = "trainer_state.json"


@dataclass(frozen=True, slots=True)
class Pick:
    """A training step, and where its weights are."""

    step: int
    path: str


def pick(series: Path, step: int | str) -> Pick:
    """The checkpoint of `series` at `step`: a number, `latest`, or `best`.

    `latest` is the highest number, but what the file `latest` names where DeepSpeed wrote one: it
    does so once a checkpoint is whole, so a higher number was cut off or is of an earlier training.

    Step folders are called `checkpoint-100`, `step-100` or `global_step100`; a training may also
    leave files such as `checkpoint-0000100.pt` beside one config.json. `best` is the
    checkpoint that the trainer's state calls the best, else a folder `best` or `best_model` whose
    own state tells its step.

    Raises:
        MissingCheckpointError: there is no such step; the message lists those that exist.
        SpecError: the folder names a step twice, or its state cannot be read.
    """
    if not series.is_dir():
        rule = "name a folder that holds checkpoint-<step> folders"
        raise MissingCheckpointError(f"model.checkpoints must {rule}, got {str(series)!r}")
    steps = _steps(series)
    if step == "best":
        return _best(series, steps)
    number = _latest(series, steps) if step == "latest" else int(step)
    if number is None or number not in steps:
        raise _missing(series, steps, step)
    return Pick(number, str(steps[number]))


def _latest(series: Path, steps: dict[int, Path]) -> int | None:
    highest, named = max(steps, default=None), named_latest(series)
    number = _step_of(named) if named else None
    if number is None or number == highest:
        return highest
    if number not in steps:
        raise _missing(series, steps, f"latest, which the file {series / LATEST} says is {named}")
    _LOG.warning("%s names %s, though there is a step %s", series / LATEST, named, highest)
    return number


def _steps(series: Path) -> dict[int, Path]:
    steps: dict[int, Path] = {}
    for folder in sorted(series.iterdir()):
        number = _step_of(folder.stem if folder.suffix == ".pt" else folder.name)
        if number is None or not (folder.is_dir() or folder.suffix == ".pt"):
            continue
        if number in steps:
            both = f"{steps[number].name} and {folder.name} in {str(series)!r}"
            raise SpecError(f"model.checkpoints must hold one folder per step, got {both}")
        steps[number] = folder
    return steps


def _step_of(name: str) -> int | None:
    match = _STEP_FOLDER.fullmatch(name)
    return int(match[1]) if match else None


def _best(series: Path, steps: dict[int, Path]) -> Pick:
    named = _named_best(series, steps)
    if named is not None:
        if named not in steps:
            raise _missing(series, steps, f"best, which {_STATE} says is {named}")
        return Pick(named, str(steps[named]))
    for folder in (series / name for name in _BEST_FOLDERS):
        if folder.is_dir():
            number = _step_of(folder.resolve().name)
            number = _state(folder).get("global_step") if number is None else number
            if number is None:
                rule = f"have a number for rows to hold: write global_step into {folder / _STATE}"
                raise SpecError(f"model.step=best must {rule}, or set model.path={folder}")
            return Pick(int(number), str(folder))
    if (series / _BEST_FILE).is_file():
        return _best_file(series / _BEST_FILE)
    raise _missing(series, steps, "best")


def _best_file(file: Path) -> Pick:
    """A training checkpoint that is called the best: a link to one by its step, or a copy."""
    number = _step_of(file.resolve().stem)
    if number is None:
        from components.models.converters.state_dicts import read_pickle  # imports torch

        saved = read_pickle(file)
        number = saved.get("step") if isinstance(saved, dict) else None
    if not isinstance(number, int):
        rule = f"have a number for rows to hold, and {file} has no step"
        raise SpecError(f"model.step=best must {rule}: set model.path={file}")
    return Pick(number, str(file))


def _named_best(series: Path, steps: dict[int, Path]) -> int | None:
    """The step that the trainer called the best; folders get moved, so its path's end counts."""
    newest = [steps[max(steps)]] if steps else []
    for folder in (series, *newest):
        best = _state(folder).get("best_model_checkpoint")
        number = _step_of(Path(best).name) if best else None
        if number is not None:
            return number
    return None


def _state(folder: Path) -> dict[str, Any]:
    path = folder / _STATE
    if not path.is_file():
        return {}
    try:
        state: dict[str, Any] = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise SpecError(f"{path}:{error.lineno} is not JSON: {error.msg}") from error
    return state


def _missing(series: Path, steps: dict[int, Path], step: object) -> MissingCheckpointError:
    exist = ", ".join(str(number) for number in sorted(steps)) or "none"
    return MissingCheckpointError(
        f"model.step must be one that {str(series)!r} has ({exist}), got {step!r}"
    )
