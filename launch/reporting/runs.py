"""What run folders say of their runs: their configs side by side, and the prompts of their rows."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from launch.rows.stored_task import StoredTasks, prompt_of
from pipeline.protocols import Example, Task
from pipeline.run.point import prompt_text
from pipeline.spec import SpecError
from pipeline.store.files import Row
from pipeline.store.stored_record import read_record

Flat = dict[str, Any]


def record(folder: Path) -> dict[str, Any] | None:
    """The run.json of a folder; None where there is none (older systems wrote none)."""
    path = folder / "run.json"
    return read_record(path) if path.exists() else None


def dotted_keys(value: Any, prefix: str = "") -> Flat:
    """Nested mappings as one level of dotted keys."""
    if not isinstance(value, Mapping) or not value:
        return {prefix: value}
    found: Flat = {}
    for key, item in value.items():
        found |= dotted_keys(item, f"{prefix}.{key}" if prefix else str(key))
    return found


def configs(folders: Iterable[Path]) -> dict[str, list[Any]]:
    """Every key of the specs and identities of some folders, with its values, each of them once.

    A folder without a run.json adds nothing.
    """
    found: dict[str, list[Any]] = {}
    for folder in folders:
        stored = record(folder)
        if stored is None:
            continue
        known = dotted_keys(stored.get("spec", {})) | dotted_keys({"step": stored.get("step")})
        known |= {f"identity.{k}": v for k, v in (stored.get("identity") or {}).items()}
        for key, value in known.items():
            values = found.setdefault(key, [])
            if value not in values:
                values.append(value)
    return found


def difference(
    ours: Mapping[str, list[Any]], theirs: Mapping[str, list[Any]]
) -> list[dict[str, Any]]:
    """Every key of either side with its values there (`a`, `b`), and whether they are the same."""
    keys = [*ours, *(key for key in theirs if key not in ours)]
    return [
        {
            "key": k,
            "a": ours.get(k, []),
            "b": theirs.get(k, []),
            "same": ours.get(k) == theirs.get(k),
        }
        for k in keys
    ]


class PromptPieces:
    """The messages of rows, made again from the task that their run.json names.

    Texts are kept once: a message is a role and the number of its text.
    """

    def __init__(self, tasks: StoredTasks) -> None:
        """`tasks` makes the tasks of run folders."""
        self._stored_tasks = tasks
        self._texts: dict[str, int] = {}
        self._prompts: dict[tuple[Path, str], int | None] = {}
        self._tasks: dict[Path, Task | None] = {}
        self._made: list[list[list[Any]]] = []
        self.refused: dict[str, str] = {}

    def number(self, folder: Path, row: Row) -> int | None:
        """The number of a row's prompt; None where it cannot be made (`refused` says why)."""
        key = (folder, str(row.get("example_id") or row.get("problem")))
        if key not in self._prompts:
            self._prompts[key] = self._make(folder, row)
        return self._prompts[key]

    def piece(self) -> dict[str, Any]:
        """All prompts and their texts, for the page."""
        return {"texts": list(self._texts), "prompts": self._made}

    def _make(self, folder: Path, row: Row) -> int | None:
        if folder not in self._tasks:
            self._tasks[folder] = self._task(folder)
        task = self._tasks[folder]
        if task is None:
            return None
        question = str(row.get("problem") or "")
        example = Example(str(row.get("example_id")), question, row.get("gold_answer"), row)
        try:
            *messages, prefill = prompt_text(prompt_of(task, example))
        except SpecError as error:
            self.refused[str(folder)] = str(error)
            return None
        turns = [[role, *map(self._text, texts)] for role, *texts in messages]
        if prefill[1:]:
            turns.append(["prefill", *map(self._text, prefill[1:])])
        self._made.append(turns)
        return len(self._made) - 1

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))

    def _task(self, folder: Path) -> Task | None:
        try:
            task = self._stored_tasks.recorded(folder)
        except SpecError as error:
            self.refused[str(folder)] = str(error)
            return None
        if task is None:
            self.refused[str(folder)] = "no run.json there names a task"
        return task
