"""From Hydra's config to a typed RunSpec and components that are made but not entered.

Nothing behind this module sees a DictConfig.
"""

import asyncio
import inspect
import json
import logging
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from pkgutil import resolve_name
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException, InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launch.config import cluster
from launch.config.command_line import check_choices, check_names, error_sentence
from launch.config.words import CONF, options_of_groups
from launch.talk.session import TalkSpec
from pipeline.protocols import Backend, Phase, Quantization, Task
from pipeline.run.phases import cap_key
from pipeline.run.point import Point, prepare
from pipeline.spec import NOT_EMPTY, ModelSpec, RunSpec, SpecError, require

Outcome = TypeVar("Outcome")

KINDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    NoneType: "null",
    Mapping: "a mapping",
    dict: "a mapping",
    Sequence: "a list",
    list: "a list",
}
PLAIN: dict[Any, tuple[type, ...]] = {Mapping: (dict,), Sequence: (list,), float: (float, int)}
# Transformers imports torchao where it is installed, which tells which of its kernels this machine
# cannot load: four lines in front of every run, also of one that quantizes nothing.
for _talker in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_talker).setLevel(logging.ERROR)

# Keys of `sampling` that cap a phase, and the keys of `task` that they replace.
TASK_CAPS = {
    "think_cap": "think_cap",
    "answer_cap": "answer_cap",
    "max_new_tokens": "max_output_tokens",
}
OF_EVERY_RUN = ("name", "path", "reasoning_cap")  # keys of `model` that need no backend
HANDED_OVER = ("model", "quantization", "cache_dir")  # to a backend that has such parameters


def register_schema() -> None:
    """Make what configs name known to Hydra: schemas, options of clusters, what help lists.

    Called before composition.
    """
    OmegaConf.register_new_resolver("options_of_groups", options_of_groups, replace=True)
    cluster.register()
    ConfigStore.instance().store(name="run_spec", node=RunSpec)
    ConfigStore.instance().store(name="talk_spec", node=TalkSpec)


def to_spec(config: DictConfig) -> RunSpec:
    """The typed RunSpec of a composed config.

    Raises:
        SpecError: names the key of anything that does not fit.
    """
    try:
        spec = OmegaConf.to_object(config)
    except OmegaConfBaseException as error:
        raise SpecError(error_sentence(error)) from error
    except AttributeError as error:  # a slotted dataclass refuses a key that was forced with +
        raise SpecError(f"a key that the schema does not have was added: {error}") from error
    assert isinstance(spec, RunSpec)
    spec.sampling.json_schema = read_schema(spec.sampling.json_schema)
    for group in ("task", "backend", "quantization"):
        check_component(group, getattr(spec, group))
    if spec.tracking:
        check_component("tracking", spec.tracking)
    return spec


def read_schema(given: object) -> object:
    """A JSON schema that is given as the name of a file; a mapping as it is."""
    if not isinstance(given, str):
        return given
    path = Path(given).expanduser()
    try:
        schema = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        rule = f"be a mapping, or the name of a file that holds one ({error})"
        raise SpecError(f"sampling.json_schema must {rule}, got {given!r}") from error
    rule = "name a file that holds a mapping"
    require(isinstance(schema, dict), "sampling.json_schema", rule, given)
    return schema


def check_component(group: str, node: dict[str, Any]) -> None:
    """Bind a node's keys to its `_target_` constructor, without calling it."""
    if "_target_" not in node:
        raise SpecError(f"{group}._target_ must name the component's class, got {sorted(node)}")
    target = component_class(group, node["_target_"])
    handed = HANDED_OVER if group == "backend" else ()
    allowed = {k: v for k, v in inspect.signature(target).parameters.items() if k not in handed}
    for key, value in node.items():
        if key.startswith("_"):
            continue
        if key not in allowed:
            own = sorted(allowed)
            raise SpecError(f"{group}.{key} is not a setting of {node['_target_']}; it has {own}")
        _check_kind(f"{group}.{key}", value, allowed[key].annotation)
        if isinstance(value, dict) and "_target_" in value:
            check_component(f"{group}.{key}", value)


def component_class(group: str, name: object) -> type:
    """The class that a dotted name of configuration names; it is imported. Raises SpecError."""
    rule = "name a class that can be imported"
    module, _, last = str(name).rpartition(".")
    try:  # not Hydra's get_class, which prints a line of its own besides
        component = resolve_name(f"{module}:{last}")
    except (ImportError, AttributeError, ValueError) as error:
        raise SpecError(f"{group}._target_ must {rule}, got {name!r} ({error})") from error
    if not isinstance(component, type):
        raise SpecError(f"{group}._target_ must {rule}, got {name!r}")
    return component


def _check_kind(key: str, value: object, annotation: Any) -> None:
    """Refuse a value that is not of a plain annotated type; other annotations say nothing here.

    An empty text is refused where null is what switches a key off.
    """
    named = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    kinds = [get_origin(kind) or kind for kind in named]
    require(value != "" or NoneType not in kinds, key, NOT_EMPTY, value)
    if not all(kind in KINDS for kind in kinds):
        return
    fits = any(type(value) in PLAIN.get(kind, (kind,)) for kind in kinds)
    require(fits, key, f"be {' or '.join(KINDS[kind] for kind in kinds)}", value)


def build(group: str, node: dict[str, Any], **handed: Any) -> Any:
    """Make the component that a node names, its nested nodes first."""
    try:
        return instantiate(node, _convert_="all", _partial_=True)(**handed)
    except SpecError:
        raise
    except (InstantiationException, TypeError, ValueError) as error:
        if isinstance(error.__cause__, SpecError):  # of a nested component
            raise error.__cause__ from error
        raise SpecError(f"{group} ({node['_target_']}): {error}") from error


def compose_task(overrides: Sequence[str]) -> Task:
    """The task of a command line such as `task=math task.grading_seconds=2`. Raises SpecError."""
    register_schema()
    check_names(overrides)
    check_choices(overrides)
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            node = OmegaConf.to_container(compose("config", list(overrides)).task, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise SpecError(error_sentence(error)) from error
    assert isinstance(node, dict)
    settings = {str(key): value for key, value in node.items()}
    check_component("task", settings)
    task: Task = build("task", settings)
    return task


def build_backend(spec: RunSpec) -> Backend:
    """The backend, not yet entered, once it has discovered what it can do."""
    backend = construct_backend(spec)
    in_a_loop_of_its_own(backend.discover())
    return backend


def construct_backend(spec: RunSpec) -> Backend:
    """The backend before `discover`. Raises SpecError."""
    quantization = build("quantization", spec.quantization)
    target = spec.quantization["_target_"]
    rule = "be a class with `name`, `devices` and `identity()` (pipeline/protocols.py)"
    require(isinstance(quantization, Quantization), "quantization._target_", rule, target)
    given = {"model": spec.model, "quantization": quantization, "cache_dir": spec.run.cache_dir}
    node = spec.backend
    parameters = inspect.signature(component_class("backend", node["_target_"])).parameters
    backend: Backend = build(
        "backend", node, **{name: given[name] for name in HANDED_OVER if name in parameters}
    )
    rule = f"be none with backend {backend.name}, which does not choose how weights are held"
    able = "quantization" in parameters or quantization.name == "none"
    require(able, "quantization", rule, quantization.name)
    refuse_unread(spec.model, backend)
    return backend


def refuse_unread(model: ModelSpec, backend: Backend) -> None:
    """Refuse a key of `model` that is set and that the backend does not read. Raises SpecError."""
    if backend.model_keys is None:
        return
    for one in fields(model):
        unset = one.default if one.default_factory is MISSING else one.default_factory()
        value = getattr(model, one.name)
        read = one.name in (*OF_EVERY_RUN, *backend.model_keys)
        shown = json.dumps(unset)
        rule = f"be {shown} with backend {backend.name}, which sends requests and does not read it"
        require(read or value == unset, f"model.{one.name}", rule, value)


def in_a_loop_of_its_own(work: Coroutine[Any, Any, Outcome]) -> Outcome:
    """Run a coroutine to its end, also where this thread runs an event loop (a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def build_point(
    spec: RunSpec,
    backend: Backend,
    overrides: Sequence[str],
    choices: dict[str, Any],
    task: Task | None = None,
) -> Point:
    """The point of a spec, with where each sampling value came from; `task` if it is built."""
    refuse_two_caps(spec, overrides)
    point = prepare(spec, task or build("task", spec.task), backend)
    refuse_idle_caps(point.phases, spec, overrides)
    sources = sampling_sources(spec, overrides, choices)
    return replace(point, overrides=list(overrides), sources=sources)


def refuse_two_caps(spec: RunSpec, overrides: Sequence[str]) -> None:
    """Refuse a cap of `task` on the command line that another value replaces.

    That is one of `sampling`, else that of a model which reasons.
    """
    typed, reasoning = typed_keys(overrides), spec.model.reasoning_cap
    for name, key in TASK_CAPS.items():
        of_task, of_sampling = spec.task.get(key), getattr(spec.sampling, name)
        if f"task.{key}" not in typed:
            continue
        rule = f"be left out, or equal sampling.{name}={of_sampling}, which replaces it"
        require(of_sampling in (None, of_task), f"task.{key}", rule, of_task)
        left = of_sampling is not None or name == "answer_cap" or reasoning in (None, of_task)
        rule = f"be left out: model.reasoning_cap={reasoning} replaces it; use sampling.{name}"
        require(left, f"task.{key}", rule, of_task)


def refuse_idle_caps(phases: Iterable[Phase], spec: RunSpec, overrides: Sequence[str]) -> None:
    """Refuse a cap of `task` on the command line for which this run has no phase."""
    typed, used = typed_keys(overrides), {phase.name: cap_key(phase) for phase in phases}
    caps = " and ".join(f"task.{TASK_CAPS[key]} for {name}" for name, key in used.items())
    for name, key in TASK_CAPS.items():
        rule = f"be left out: it caps no phase that the task has in this run; use {caps}"
        idle = f"task.{key}" in typed and name not in used.values()
        require(not idle, f"task.{key}", rule, spec.task.get(key))


def typed_keys(overrides: Sequence[str]) -> set[str]:
    """The keys that a command line names."""
    return {override.lstrip("+~").partition("=")[0] for override in overrides}


def sampling_sources(
    spec: RunSpec, overrides: Sequence[str], choices: dict[str, Any]
) -> dict[str, str]:
    """Where each sampling value came from: command line, experiment or sampling option."""
    typed = typed_keys(overrides)
    given = f"experiment={choices['experiment']}, " if choices.get("experiment") else ""
    sources = {}
    for name in asdict(spec.sampling):
        on_line = f"sampling.{name}" in typed
        sources[name] = "command line" if on_line else f"{given}sampling={choices.get('sampling')}"
    return sources
