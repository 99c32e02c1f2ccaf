"""Points that are no grid: a file with one point a line, each the overrides that make it."""

from collections.abc import Sequence
from pathlib import Path

from launch.config.setup import RunSetup
from pipeline.spec import SpecError
from pipeline.store.files import read_text


def lines_of(setup: RunSetup, overrides: Sequence[str]) -> list[list[str]] | None:
    """The overrides of every point that `run.manifest` names; None without one.

    The file is tab separated: overrides as on a command line, or values under a first line of keys.
    Its values come after those of the command line, and win. Lines that begin with `#` are skipped.

    Raises:
        SpecError: no file, no point in it, or a line that does not fit the first.
    """
    name = setup.spec.run.manifest
    if name is None:
        return None
    path = Path(name)
    kept = [o for o in overrides if not o.startswith("run.manifest=")]
    text = read_text(path, "run.manifest").splitlines()
    numbered = [(n, line.split("\t")) for n, line in enumerate(text, 1) if _counts(line)]
    keys: list[str] | None = None
    if numbered and not any("=" in cell for cell in numbered[0][1]):
        keys = numbered.pop(0)[1]
    if not numbered:
        raise SpecError(f"run.manifest must hold at least one point, {name} holds none")
    return [_merged(kept, _overrides(cells, keys, f"{name}:{n}")) for n, cells in numbered]


def _counts(line: str) -> bool:
    return bool(line.strip()) and not line.startswith("#")


def _overrides(cells: Sequence[str], keys: Sequence[str] | None, where: str) -> list[str]:
    if keys is None:
        if bad := [cell for cell in cells if "=" not in cell]:
            raise SpecError(f"{where}: every cell must be key=value, got {bad[0]!r}")
        return list(cells)
    if len(cells) != len(keys):
        raise SpecError(f"{where}: must have {len(keys)} values ({', '.join(keys)}), got {cells}")
    return [f"{key}={value}" for key, value in zip(keys, cells, strict=True)]


def _merged(overrides: Sequence[str], line: Sequence[str]) -> list[str]:
    """One override per key, the line's where both have one."""
    found = {o.partition("=")[0]: o for o in [*overrides, *line]}
    return list(found.values())
