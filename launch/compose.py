"""From Hydra's config to typed RunSpecs and live components.

Past this door there is no DictConfig.
"""

import inspect
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.errors import InstantiationException
from hydra.utils import get_class, instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launch import cluster
from pipeline.point import Point, prepare
from pipeline.protocols import Backend, Task
from pipeline.spec import RunSpec, SpecError

HANDED_OVER = ("model", "quantization", "cache_dir")  # what launch gives every backend itself

FLAGS = ("-h", "--help", "-m", "--multirun")


def arguments(given: Sequence[str]) -> list[str]:
    """The command line as Hydra takes it.

    Its flags stand before the overrides, wherever they were typed; `--help` needs a task to show.
    """
    flags = [word for word in given if word in FLAGS]
    rest = [word for word in given if word not in FLAGS]
    asked = any(flag in ("-h", "--help") for flag in flags)
    shown = [] if any(word.startswith("task=") for word in rest) or not asked else ["task=math"]
    return [*flags, *rest, *shown]


def register_schema() -> None:
    """Make `run_spec` and the clusters' options known to Hydra; called before composition."""
    cluster.register()
    ConfigStore.instance().store(name="run_spec", node=RunSpec)


def to_spec(config: DictConfig) -> RunSpec:
    """The typed RunSpec of a composed config.

    Raises:
        SpecError: names the key of anything that does not fit.
    """
    try:
        spec = OmegaConf.to_object(config)
    except OmegaConfBaseException as error:
        key = error.full_key or "config"
        raise SpecError(f"{key}: {str(error).splitlines()[0]}") from error
    except AttributeError as error:  # a slotted dataclass refuses a key that was forced with +
        raise SpecError(f"a key that the schema does not have was added: {error}") from error
    assert isinstance(spec, RunSpec)
    for group in ("task", "backend", "quantization"):
        check_component(group, getattr(spec, group))
    if spec.tracking:
        check_component("tracking", spec.tracking)
    return spec


def check_component(group: str, node: dict[str, Any]) -> None:
    """Bind a node's keys to its `_target_` constructor, without calling it."""
    if "_target_" not in node:
        raise SpecError(f"{group}._target_ must name the component's class, got {sorted(node)}")
    try:
        target = get_class(node["_target_"])
    except (ImportError, ValueError) as error:
        raise SpecError(f"{group}._target_ cannot be loaded: {error}") from error
    allowed = inspect.signature(target).parameters
    for key in node:
        taken = key.startswith("_") or (key in allowed and key not in _handed(group))
        if not taken:
            own = sorted(set(allowed) - set(_handed(group)))
            raise SpecError(f"{group}.{key} is not a setting of {node['_target_']}; it has {own}")


def _handed(group: str) -> tuple[str, ...]:
    return HANDED_OVER if group == "backend" else ()


def build(group: str, node: dict[str, Any], **handed: Any) -> Any:
    """Make the component that a node names, its nested nodes first."""
    try:
        return instantiate(node, _convert_="all", _partial_=True)(**handed)
    except SpecError:
        raise
    except (InstantiationException, TypeError, ValueError) as error:
        raise SpecError(f"{group} ({node['_target_']}): {error}") from error


def build_backend(spec: RunSpec) -> Backend:
    """The backend, not yet entered."""
    quantization = build("quantization", spec.quantization)
    backend: Backend = build(
        "backend",
        spec.backend,
        model=spec.model,
        quantization=quantization,
        cache_dir=spec.run.cache_dir,
    )
    return backend


def build_point(
    spec: RunSpec,
    backend: Backend,
    overrides: Sequence[str],
    choices: dict[str, Any],
    task: Task | None = None,
) -> Point:
    """The point of a spec, with where each sampling value came from; `task` if it is built."""
    point = prepare(spec, task or build("task", spec.task), backend)
    point.overrides = list(overrides)
    point.sources = sampling_sources(spec, overrides, choices)
    return point


def sampling_sources(
    spec: RunSpec, overrides: Sequence[str], choices: dict[str, Any]
) -> dict[str, str]:
    """Where each sampling value came from: command line, experiment or sampling option."""
    typed = {override.lstrip("+~").partition("=")[0] for override in overrides}
    given = f"experiment={choices['experiment']}, " if choices.get("experiment") else ""
    sources = {}
    for name in asdict(spec.sampling):
        on_line = f"sampling.{name}" in typed
        sources[name] = "command line" if on_line else f"{given}sampling={choices.get('sampling')}"
    return sources
