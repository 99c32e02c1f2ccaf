"""The task that made stored rows, made again from what the run.json beside them says.

A run folder may be somebody else's, so its record is data (docs/trust.md): nothing in it is
imported, instantiated or resolved. The record's class is looked up among those that configuration
names, and called with the record's plain values.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from launch.config.compose import check_component, component_class, compose_task
from launch.config.words import CONF
from pipeline.backfill.stored_rows import phases_of
from pipeline.protocols import Example, Prompt, Task
from pipeline.run.phases import with_phases
from pipeline.spec import SpecError
from pipeline.store.files import Row
from pipeline.store.stored_record import read_record

TARGET = "_target_"
# Settings that say how grading is run and not what is right: the record does not choose them.
NOT_FROM_RECORDS = ("grading_workers",)
LONGEST_GRADING_SECONDS = 60.0
# What the code of a task raises over data of another shape than its own.
MISFITS = (AttributeError, LookupError, TypeError, ValueError)


class StoredTasks:
    """Tasks of stored rows, each made once.

    `name` is a task of conf/task that judges every row instead of the row's own. `overrides`
    (`task.grader=exact`) come from the user's command line and replace settings. `config_dirs` are
    folders of configuration like conf/, whose task classes are trusted as well; so are `classes`,
    given by their dotted names.
    """

    def __init__(
        self,
        overrides: Sequence[str] = (),
        name: str | None = None,
        config_dirs: Sequence[Path] = (),
        classes: Iterable[str] = (),
    ) -> None:
        """Read the names of task classes in configuration."""
        self.name, self.overrides, self.config_dirs = name, list(overrides), list(config_dirs)
        for folder in config_dirs:
            if not folder.is_dir():
                raise SpecError(f"--config-dir must name a folder of configuration, got {folder}")
        self._options = _task_options([CONF, *config_dirs])
        self._changes = _changes(overrides)
        given = [str(self._changes[TARGET])] if TARGET in self._changes else []
        self._classes = {*classes, *given, *filter(None, self._options.values())}
        self._by_folder: dict[Path, Task | None] = {}
        self._by_name: dict[str, Task] = {}

    def of(self, folder: Path, row: Row) -> Task:
        """The task of a row in a file of `folder`: its run's own, else that which the row names.

        Raises:
            SpecError: there is no such task, or the record is refused.
        """
        if self.name is not None:
            return self._named(self.name, "--recompute")
        if (task := self.recorded(folder)) is not None:
            return task
        name = row.get("task")
        if not isinstance(name, str):
            raise SpecError(
                "rows without a run.json beside them that name no task need one: --recompute TASK"
            )
        return self._named(name, "the rows' task")

    def recorded(self, folder: Path) -> Task | None:
        """The task as the run.json of a folder has it; None where that names none.

        Raises:
            SpecError: the record names a class that no configuration names, or holds what is not
                plain data.
        """
        if folder not in self._by_folder:
            self._by_folder[folder] = self._from_record(folder / "run.json")
        return self._by_folder[folder]

    def _from_record(self, path: Path) -> Task | None:
        if not path.exists():
            return None
        spec = read_record(path).get("spec")
        node = spec.get("task") if isinstance(spec, dict) else None
        if not isinstance(node, dict):
            return None
        kept = {str(k): v for k, v in node.items() if k not in NOT_FROM_RECORDS}
        return self._build(_with_changes(kept, self._changes), str(path))

    def _build(self, node: dict[str, Any], where: str) -> Task:
        target = node.get(TARGET)
        if not isinstance(target, str) or target not in self._classes:
            raise SpecError(
                f"{where} names the task class {target!r}, which no file of conf/task names; "
                "if it is yours, give the folder of its configuration with --config-dir"
            )
        _refuse_what_is_not_plain(node, where)
        values = {key: value for key, value in node.items() if key != TARGET}
        try:
            check_component("task", node)
            task: Task = component_class("task", target)(**values)
        except MISFITS as error:
            raise SpecError(f"{where}: its task cannot be made: {error}") from error
        return task

    def _named(self, name: str, whose: str) -> Task:
        """A task of configuration, with the overrides."""
        if name not in self._options:
            known = ", ".join(sorted(self._options))
            raise SpecError(f"{whose} must be one of {known}, got {name!r}")
        if name not in self._by_name:
            searched = ",".join(f"file://{folder.absolute()}" for folder in self.config_dirs)
            path = [f"hydra.searchpath=[{searched}]"] if searched else []
            try:
                self._by_name[name] = compose_task([f"task={name}", *self.overrides, *path])
            except SpecError as error:
                raise SpecError(f"{whose} {name}: {error}") from error
        return self._by_name[name]


def prompt_of(task: Task, example: Example) -> Prompt:
    """The prompt of a stored row, whose columns are the example's metadata.

    Raises:
        SpecError: the task could not have asked it.
    """
    try:
        return with_phases(task, phases_of(example.metadata, task)).prompt(example)
    except MISFITS as error:
        text = f"{type(error).__name__}: {error}"
        raise SpecError(f"example {example.id}: task {task.name} cannot ask it ({text})") from error


def _task_options(folders: Iterable[Path]) -> dict[str, str | None]:
    """The options of the group `task` with the class that each names itself."""
    found: dict[str, str | None] = {}
    for folder in folders:
        for path in sorted((folder / "task").rglob("*.yaml")):
            node = yaml.safe_load(path.read_text(encoding="utf-8"))
            target = node.get(TARGET) if isinstance(node, dict) else None
            found[path.relative_to(folder / "task").with_suffix("").as_posix()] = target
    return found


def _changes(overrides: Sequence[str]) -> dict[str, Any]:
    """Overrides of the command line, such as `task.data.path=x`, by their keys below `task`."""
    changes: dict[str, Any] = {}
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        group, _, key = override.key_or_group.partition(".")
        if group != "task" or not key or override.is_delete() or override.is_sweep_override():
            raise SpecError(f"{override.input_line} must be task.KEY=VALUE")
        changes[key] = override.value()
    return changes


def _with_changes(node: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in changes.items():
        *parents, last = key.split(".")
        inner = node
        for name in parents:
            inner[name] = dict(inner[name]) if isinstance(inner.get(name), dict) else {}
            inner = inner[name]
        inner[last] = value
    return node


def _refuse_what_is_not_plain(node: dict[str, Any], where: str) -> None:
    """Refuse what Hydra or OmegaConf would take as more than data, wherever it stands."""
    seconds = node.get("grading_seconds")
    if isinstance(seconds, int | float) and not 0 < seconds <= LONGEST_GRADING_SECONDS:
        limit = f"{LONGEST_GRADING_SECONDS:g}"
        raise SpecError(
            f"{where}: spec.task.grading_seconds must be above 0 and at most {limit}, got {seconds}"
        )
    waiting: list[tuple[str, Any]] = [("spec.task", {k: v for k, v in node.items() if k != TARGET})]
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, str) and "${" in value:
            raise SpecError(
                f"{where}: {key} must be plain text, got {value!r}, which would be resolved in a "
                "configuration; nothing of a record is"
            )
        if isinstance(value, dict):
            if special := [name for name in value if str(name).startswith("_")]:
                raise SpecError(
                    f"{where}: {key} must hold plain values, got the key {special[0]!r}; "
                    "no record names classes but that of its task"
                )
            waiting += [(f"{key}.{name}", item) for name, item in value.items()]
        elif isinstance(value, list):
            waiting += [(f"{key}[{number}]", item) for number, item in enumerate(value)]
