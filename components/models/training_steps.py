"""Picks one training step out of a folder of checkpoints."""

import logging
from dataclasses import dataclass
from pathlib import Path

from components.models.found_models import (
    STATE,
    found_models,
    newest_below,
    step_of,
    table,
    trainer_state,
)
from components.models.zero_folder import LATEST, named_latest
from pipeline.spec import MissingCheckpointError, SpecError

_LOG = logging.getLogger(__name__)
_BEST_FOLDERS = ("best", "best_model")
_BEST_FILE = "checkpoint-best.pt"


@dataclass(frozen=True, slots=True)
class Pick:
    """A training step, and where its weights are."""

    step: int
    path: str


def pick(series: Path, step: int | str) -> Pick:
    """The checkpoint of `series` at `step`: a number, `latest`, or `best`.

    `latest` is the highest number, but what the file `latest` names where DeepSpeed wrote one: it
    does so once a checkpoint is whole, so a higher number was cut off or is of an earlier training.
    Where `series` has no steps but folders of runs, it is the model among them that was saved last.

    Step folders are called `checkpoint-100`, `step-100` or `global_step100`; a training may also
    leave files such as `checkpoint-0000100.pt` beside one config.json. `best` is the
    checkpoint that the trainer's state calls the best, else a folder `best` or `best_model` whose
    own state tells its step.

    Raises:
        MissingCheckpointError: there is no such step; the message has a table of what there is.
        SpecError: the folder names a step twice, its state cannot be read, or two runs were saved
            last at the same time.
    """
    if not series.is_dir():
        rule = "name a folder that holds checkpoint-<step> folders"
        raise MissingCheckpointError(f"model.checkpoints must {rule}, got {str(series)!r}")
    steps = _steps(series)
    if step == "best":
        return _best(series, steps)
    if step == "latest" and not steps and (newest := newest_below(series)):
        _LOG.info("model.step=latest is %s, the newest model under %s", newest.path, series)
        return Pick(newest.step or 0, str(newest.path))
    number = _latest(series, steps) if step == "latest" else int(step)
    if number is None or number not in steps:
        raise _missing(series, steps, step)
    return Pick(number, str(steps[number]))


def _latest(series: Path, steps: dict[int, Path]) -> int | None:
    highest, named = max(steps, default=None), named_latest(series)
    number = step_of(named) if named else None
    if number is None or number == highest:
        return highest
    if number not in steps:
        raise _missing(series, steps, f"latest, which the file {series / LATEST} says is {named}")
    _LOG.warning("%s names %s, though there is a step %s", series / LATEST, named, highest)
    return number


def _steps(series: Path) -> dict[int, Path]:
    steps: dict[int, Path] = {}
    for folder in sorted(series.iterdir()):
        number = step_of(folder.stem if folder.suffix == ".pt" else folder.name)
        if number is None or not (folder.is_dir() or folder.suffix == ".pt"):
            continue
        if number in steps:
            both = f"{steps[number].name} and {folder.name} in {str(series)!r}"
            raise SpecError(f"model.checkpoints must hold one folder per step, got {both}")
        steps[number] = folder
    return steps


def _best(series: Path, steps: dict[int, Path]) -> Pick:
    named = _named_best(series, steps)
    if named is not None:
        if named not in steps:
            raise _missing(series, steps, f"best, which {STATE} says is {named}")
        return Pick(named, str(steps[named]))
    for folder in (series / name for name in _BEST_FOLDERS):
        if folder.is_dir():
            number = step_of(folder.resolve().name)
            number = trainer_state(folder).get("global_step") if number is None else number
            if number is None:
                rule = f"have a number for rows to hold: write global_step into {folder / STATE}"
                raise SpecError(f"model.step=best must {rule}, or set model.path={folder}")
            return Pick(int(number), str(folder))
    if (series / _BEST_FILE).is_file():
        return _best_file(series / _BEST_FILE)
    raise _missing(series, steps, "best")


def _best_file(file: Path) -> Pick:
    """A training checkpoint that is called the best: a link to one by its step, or a copy."""
    number = step_of(file.resolve().stem)
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
        best = trainer_state(folder).get("best_model_checkpoint")
        number = step_of(Path(best).name) if best else None
        if number is not None:
            return number
    return None


def _missing(series: Path, steps: dict[int, Path], step: object) -> MissingCheckpointError:
    exist = ", ".join(str(number) for number in sorted(steps)) or "none"
    asked = f"model.step must be one that {str(series)!r} has ({exist}), got {step!r}"
    found = found_models(series)
    if not found:
        return MissingCheckpointError(f"{asked}: there is no model under that folder")
    todo = "set model.step to one of its steps, or model.path to one of these paths"
    return MissingCheckpointError(f"{asked}:\n{table(found)}\n{todo}")
