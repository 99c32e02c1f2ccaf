"""What README.md says holds: its length, its tree, its commands, its options."""

import re
import shlex
from collections.abc import Iterator

import pytest

from launch.config.compose import to_spec
from tests.fakes.configs import ROOT, composed

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^ {4}python launch/run\.py (.*)$", TEXT, re.MULTILINE)


def tree() -> Iterator[tuple[int, str, list[str]]]:
    """Each line of the tree as indent, first column, and names in the rest that look like files."""
    block = TEXT.split("## The tree")[1].split("```")[1]
    for line in block.strip("\n").splitlines():
        first, rest = line[:25], line[25:]
        indent = len(line) - len(line.lstrip())
        yield indent, first, re.findall(r"(?:\.ci/run|\b[\w-]+\.(?:py|md|txt|yaml|json))", rest)


def named_files() -> Iterator[str]:
    folders: dict[int, str] = {}
    for indent, first, rest in tree():
        parent = "".join(folders[i] for i in sorted(folders) if i < indent)
        names = first.split()
        for name in names:
            yield parent + name
        folders = {i: f for i, f in folders.items() if i < indent}
        inside = parent
        if names[0].endswith("/"):
            folders[indent] = names[0]
            inside = parent + names[0]
        yield from (inside + name for name in rest if name != "run.json")


def test_it_can_be_read_in_one_sitting() -> None:
    assert len(TEXT.splitlines()) <= 150


def test_every_file_that_the_tree_names_exists() -> None:
    names = list(named_files())
    assert len(names) > 40
    assert not [name for name in names if not (ROOT / name).exists()]


def test_the_tree_names_every_room_and_every_door() -> None:
    names = {name.rstrip("/") for name in named_files()}
    rooms = [d for top in ("pipeline", "components", "launch") for d in (ROOT / top).iterdir()]
    rooms = [d for d in rooms if d.is_dir() and d.name not in ("__pycache__", "hydra_plugins")]
    doors = [f for f in ROOT.glob("launch/*.py") if f.name != "__init__.py"]
    assert not {str(path.relative_to(ROOT)) for path in (*rooms, *doors)} - names


def test_every_path_in_ticks_exists() -> None:
    paths = re.findall(r"`((?:conf|pipeline|components|examples|launch)/[\w/.]*)`", TEXT)
    assert len(paths) > 10
    assert not [path for path in paths if not (ROOT / path).exists()]


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_composes(line: str) -> None:
    words = [word for word in shlex.split(line) if not word.startswith("-")]
    points = [word.partition(",")[0] for word in words]  # the first point of a sweep
    to_spec(composed(*points))


def test_the_main_command_is_there() -> None:
    assert "task=crossword backend=hf sampling.temperature=0.3" in COMMANDS


def options(group: str) -> set[str]:
    return {path.stem for path in (ROOT / "conf" / group).glob("*.yaml")}


def told(group: str) -> set[str]:
    (row,) = (line for line in TEXT.splitlines() if line.startswith(f"| `{group}` |"))
    return set(re.findall(r"[\w-]+", re.findall(r"`([^`]+)`", row.split("|")[3])[0]))


def test_the_table_has_every_group_and_its_options() -> None:
    groups = [path.name for path in sorted((ROOT / "conf").iterdir()) if path.is_dir()]
    assert len(groups) >= 8
    for group in groups:
        assert told(group) <= options(group), group


def test_every_make_target_that_it_names_is_one() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)\b", TEXT)) - {"points", "lists"} <= targets
