"""The models under a folder: what to say when one that is asked for is not there, and the newest.

Only names, small configs and times of files are read; nothing is loaded.
"""

import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.models.adapters import is_adapter
from components.models.foreign_checkpoints import foreign_kind
from components.models.hashes import weight_files
from components.models.zero_folder import zero_tag
from pipeline.spec import SpecError

STATE = "trainer_state.json"
_STEP = re.compile(r"(?:checkpoint|global_step|step)[-_]?(\d+)")
_DEEPEST = 2  # folders below the one that is asked for: runs, and their checkpoints
_MOST_ROWS = 20
_UNFINISHED = "no weights"
_KINDS = {
    "bdh": "BDH",
    "mini_llm": "Mini-LLM",
    "memory_transformer": "memory transformer",
    "memory_parts": "memory parts",
    "zero": "DeepSpeed ZeRO",
}


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model, adapter or training checkpoint.

    Attributes:
        path: what `model.path` takes.
        kind: a word for its layout, or what is wrong with it.
        step: its training step, if its name or its trainer's state tells it.
        saved: when its weights were written last, in seconds since 1970.
    """

    path: Path
    kind: str
    step: int | None
    saved: float

    @property
    def is_whole(self) -> bool:
        """Whether there is something to load."""
        return self.kind != _UNFINISHED


def step_of(name: str) -> int | None:
    """The training step in a name such as `checkpoint-100`."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None


def trainer_state(folder: Path) -> dict[str, Any]:
    """What a trainer wrote about a checkpoint; empty where it wrote nothing.

    Raises:
        SpecError: it is not JSON.
    """
    path = folder / STATE
    if not path.is_file():
        return {}
    try:
        state: dict[str, Any] = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise SpecError(f"{path}:{error.lineno} is not JSON: {error.msg}") from error
    return state


def found_models(root: Path) -> list[FoundModel]:
    """What lies in the folder and up to two below it, the newest first."""
    found = _below(root, _DEEPEST) if root.is_dir() else ()
    return sorted(found, key=lambda each: (-each.saved, each.step is None, str(each.path)))


def newest_below(root: Path) -> FoundModel | None:
    """The model in a folder below `root` whose weights were written last; None where none is.

    Raises:
        SpecError: two runs have models that were written last at the same time.
    """
    below = [each for each in found_models(root) if each.is_whole and each.path != root]
    if not below:
        return None
    runs = {each.path.relative_to(root).parts[0] for each in below if each.saved == below[0].saved}
    if len(runs) > 1:
        why = f"model.step=latest must be one of the runs under {root}, saved at the same time"
        raise SpecError(f"{why}:\n{table(below)}\nset model.path to one of these paths")
    return below[0]


def refuse_root(path: str) -> None:
    """Refuse a folder that holds models and is none itself. Raises SpecError, with their table."""
    root = Path(path).expanduser()
    if not root.is_dir() or weight_files(root) or zero_tag(root):
        return
    found = [each for each in found_models(root) if each.path != root]
    if found and not is_adapter(root) and not (root / "config.json").is_file():
        raise SpecError(
            f"model.path={path} must be a model, and holds several places of them:\n"
            f"{table(found)}\nset model.path to one of these paths, or model.step=latest for the "
            "newest of them"
        )


def table(found: Sequence[FoundModel]) -> str:
    """Step, kind, date and place of each, a line each."""
    rows = [("step", "kind", "saved", "path")]
    for each in found[:_MOST_ROWS]:
        step = "-" if each.step is None else str(each.step)
        saved = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.saved))
        rows.append((step, each.kind, saved, str(each.path)))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        f"  {row[0]:>{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:<{widths[2]}}  {row[3]}"
        for row in rows
    ]
    more = len(found) - _MOST_ROWS
    return "\n".join([*lines, f"  and {more} older ones"] if more > 0 else lines)


def _below(folder: Path, deeper: int) -> Iterator[FoundModel]:
    own = _found(folder)
    if own is not None:
        yield own
    for path in _inside(folder) if deeper else ():
        if path.is_dir() and not path.name.startswith("."):
            yield from _below(path, deeper - 1)
        elif path.suffix == ".gguf":
            yield FoundModel(path, "GGUF", None, path.stat().st_mtime)
        elif _is_step_file(path):
            yield FoundModel(path, "training file", step_of(path.stem), path.stat().st_mtime)


def _found(folder: Path) -> FoundModel | None:
    """What a folder itself holds, not those below it."""
    weights = [file for file in weight_files(folder) if not _is_step_file(file)]
    step = step_of(folder.name)
    if weights:
        if step is None:
            step = _state_step(folder)
        return FoundModel(folder, _kind(folder), step, max(f.stat().st_mtime for f in weights))
    if step is None:
        return None
    return FoundModel(folder, _UNFINISHED, step, folder.stat().st_mtime)


def _kind(folder: Path) -> str:
    try:
        foreign = foreign_kind(folder)
    except SpecError:
        return "files of two kinds"
    if foreign is not None:
        return _KINDS[foreign]
    if is_adapter(folder):
        return "LoRA adapter"
    return "model" if (folder / "config.json").is_file() else "weights without config.json"


def _is_step_file(path: Path) -> bool:
    return path.suffix == ".pt" and step_of(path.stem) is not None


def _inside(folder: Path) -> list[Path]:
    """What a folder holds; nothing where it may not be read."""
    try:
        return sorted(folder.iterdir())
    except PermissionError:
        return []


def _state_step(folder: Path) -> int | None:
    try:
        step = trainer_state(folder).get("global_step")
    except SpecError:  # told where that checkpoint is loaded
        return None
    return step if isinstance(step, int) else None
