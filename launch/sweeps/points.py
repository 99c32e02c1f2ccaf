"""The points of a sweep: composed once, made ready without loading a model, counted."""

import copy
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from launch.config.command_line import check_choices, error_sentence
from launch.config.compose import build, build_backend, build_point
from launch.config.setup import RunSetup, setup_of
from pipeline.protocols import Backend, Task
from pipeline.run.point import Point
from pipeline.spec import MissingCheckpointError, SpecError, digest
from pipeline.store.row_heads import key_of
from pipeline.store.row_index import read_rows
from pipeline.store.stored_record import attempts_of, read_record

SLICE: tuple[str, ...] = (
    "seed",
    "split",
    "start",
    "limit",
    "from_end",
    "shuffle_seed",
    "ids",
    "phases",
)
SLICE += ("pass1_sample",)


class Composer:
    """Composes the points of a sweep; those that differ only in plain values share one composition.

    Composing takes Hydra tens of milliseconds. Plain values are set after it, so they do not reach
    an interpolation inside a defaults list (`- sampling: ${model.name}`), as they do without `-m`.
    """

    def __init__(self, context: HydraContext, config: DictConfig) -> None:
        """Nothing is composed yet."""
        self._loader, self._config = context.config_loader, config
        self._parser = OverridesParser.create(config_loader=context.config_loader)
        self._known: dict[str, Override] = {}
        self._groups: dict[str, bool] = {}
        self._bases: dict[tuple[str, ...], tuple[DictConfig, dict[str, Any]]] = {}

    def setup(self, overrides: Sequence[str]) -> RunSetup:
        """The point of one list of overrides. Raises SpecError naming what does not fit."""
        check_choices(overrides)
        parsed = [self._parsed(override) for override in overrides]
        plain = [o for o in parsed if self._is_plain(o)]
        rest = tuple(o.input_line or "" for o in parsed if not self._is_plain(o))
        try:
            base, choices = self._base(rest)
            config = copy.deepcopy(base)
            for override in plain:
                OmegaConf.update(config, override.key_or_group, override.value(), merge=True)
        except (HydraException, OmegaConfBaseException) as error:
            line = " ".join(overrides)
            raise SpecError(
                f"the point {line} does not compose: {error_sentence(error)}"
            ) from error
        return setup_of(config, overrides, choices)

    def _parsed(self, override: str) -> Override:
        if override not in self._known:
            (self._known[override],) = self._parser.parse_overrides([override])
        return self._known[override]

    def _is_plain(self, override: Override) -> bool:
        """Whether it sets a value, rather than choosing an option, adding or removing a key."""
        key = override.key_or_group
        changes = not (override.is_add() or override.is_force_add() or override.is_delete())
        if key not in self._groups:  # asking Hydra takes tens of milliseconds
            self._groups[key] = bool(self._loader.get_group_options(key))
        special = self._groups[key] or override.package is not None or key.startswith("hydra")
        return changes and not special

    def _base(self, overrides: tuple[str, ...]) -> tuple[DictConfig, dict[str, Any]]:
        if overrides not in self._bases:
            config = self._loader.load_sweep_config(self._config, list(overrides))
            choices = dict(config.hydra.runtime.choices)
            with open_dict(config):
                del config["hydra"]
            self._bases[overrides] = (config, choices)
        return self._bases[overrides]


@dataclass(slots=True)
class SweepPoint:
    """A point of a sweep: what is known of it before it runs."""

    setup: RunSetup
    point: Point | None = None  # None: its checkpoint is not there
    problem: str = ""
    missing: int = 0  # rows that are not there yet
    job: str = ""

    @property
    def name(self) -> str:
        """What tells it from others, for tables."""
        if self.point is None:
            return " ".join(self.setup.overrides)
        return self.point.title


@dataclass(slots=True)
class PointBuilder:
    """Makes points of setups; points share tasks, and backends that are never entered."""

    backends: dict[str, Backend] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)

    def sweep_point(self, setup: RunSetup) -> SweepPoint:
        """The point of a setup with its rows counted.

        Raises:
            SpecError: unless `run.missing_checkpoint` says what to do.
        """
        try:
            point = self._point(setup)
        except SpecError as error:
            gone = isinstance(error, MissingCheckpointError)
            if gone and setup.spec.run.missing_checkpoint != "fail":
                return SweepPoint(setup, problem=str(error).partition(":\n")[0])  # not its table
            raise SpecError(f"{error} (the point {' '.join(setup.overrides)})") from error
        return SweepPoint(setup, point, missing=missing_rows(point))

    def _point(self, setup: RunSetup) -> Point:
        key = setup.load_key
        if key not in self.backends:
            self.backends[key] = build_backend(setup.spec)
        named = digest(setup.spec.task)
        if named not in self.tasks:
            self.tasks[named] = build("task", setup.spec.task)
        about = (setup.overrides, setup.choices, self.tasks[named])
        return build_point(setup.spec, self.backends[key], *about)


def rows_of(member: SweepPoint) -> str:
    """Rows that are there, of those asked for."""
    if member.point is None:
        return ""
    total = len(member.point.canonical_order())
    return f"{total - member.missing}/{total}"


def missing_rows(point: Point) -> int:
    """How many rows of a point are not complete, by its files."""
    if not (point.folder / "run.json").exists():
        return len(point.canonical_order())
    if _ended_whole(point):
        return 0
    rows = read_rows(point.rows_path)
    complete = {key_of(row) for row in rows if point.is_complete(row)}
    return len(set(point.canonical_order()) - complete)


def _ended_whole(point: Point) -> bool:
    """Whether the last attempt asked for exactly this and ended complete: no rows are read."""
    record = read_record(point.folder / "run.json", "spec")
    attempts = attempts_of(point.folder)
    whole = bool(attempts) and attempts[-1]["status"] == "complete" and point.rows_path.exists()
    whole = whole and count_lines(point.rows_path) >= len(point.canonical_order())
    return whole and _asked(record["spec"]) == _asked(json.loads(json.dumps(asdict(point.spec))))


def count_lines(path: Path) -> int:
    """Lines of a file, fast."""
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def _asked(spec: dict[str, Any]) -> list[Any]:
    return [spec["sampling"], spec["cue"], *(spec["run"][name] for name in SLICE)]
