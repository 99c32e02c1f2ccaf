"""Which points of a sweep share a job: one load, many points (`run.pack`)."""

from collections.abc import Sequence

from launch.config.setup import RunSetup
from launch.sweeps.points import SweepPoint
from pipeline.spec import SpecError


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
        groups.setdefault((member.setup.load_key, *apart, *alone), []).append(member)
    return list(groups.values())


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
