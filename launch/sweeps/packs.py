"""Which points of a sweep share a job: one load, many points (`run.pack`)."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from launch.config.compose import build_backend
from launch.config.setup import RunSetup
from launch.sweeps.points import SweepPoint
from pipeline.protocols import Backend
from pipeline.spec import SpecError

ADAPTERS = ("model.adapter", "model.merge_adapter")


def pack(members: Sequence[SweepPoint]) -> list[list[SweepPoint]]:
    """Points grouped by model and by every swept key that `run.pack` does not name, in order.

    Raises:
        SpecError: `run.pack` names a key that the sweep does not vary.
    """
    varied = swept([member.setup for member in members])
    groups: dict[tuple[str, ...], list[SweepPoint]] = {}
    for number, member in enumerate(members):
        names = member.setup.spec.run.pack
        _check(names, varied)
        apart = [o for o in member.setup.overrides if _key(o) in varied and not packs(names, o)]
        alone = () if names else (str(number),)
        # An adapter that is named loads for itself, over a base that is read once (`succession`).
        named = any(name in (*ADAPTERS, "adapter", "merge_adapter") for name in names)
        load = "" if named else member.setup.load_key
        groups.setdefault((load, *apart, *alone), []).append(member)
    return list(groups.values())


def by_load(setups: Sequence[RunSetup]) -> list[list[RunSetup]]:
    """The runs that share all that a backend loads, in order."""
    groups: dict[str, list[RunSetup]] = {}
    for setup in setups:
        groups.setdefault(setup.load_key, []).append(setup)
    return list(groups.values())


def succession(loads: Sequence[list[RunSetup]]) -> Iterator[tuple[Backend, list[RunSetup]]]:
    """A backend for each load, to be entered and left one after the other.

    Raises:
        SpecError: a backend refuses its settings.
    """
    backends = [build_backend(setups[0].spec) for setups in loads]
    for previous, backend in pairwise(backends):
        backend.succeed(previous)
    for setups in loads:
        yield backends.pop(0), setups


def swept(setups: Sequence[RunSetup]) -> list[str]:
    """The keys whose overrides differ between points."""
    found: dict[str, set[str]] = {}
    for setup in setups:
        for override in setup.overrides:
            found.setdefault(_key(override), set()).add(override)
    everywhere = {k for k in found if all(any(_key(o) == k for o in d.overrides) for d in setups)}
    return [key for key, values in found.items() if len(values) > 1 or key not in everywhere]


def packs(names: Sequence[str], override: str) -> bool:
    """Whether `run.pack` names the key of an override, whole or by its last part."""
    key = _key(override)
    return any(name in (key, key.rpartition(".")[2], "*") for name in names)


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def _check(names: Sequence[str], varied: Sequence[str]) -> None:
    for name in names:
        if varied and not any(packs([name], key) for key in varied):
            raise SpecError(f"run.pack must name keys that the sweep varies, {varied}, got {name}")
