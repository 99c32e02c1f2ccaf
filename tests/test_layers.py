"""Imports go one way: launch -> components -> pipeline."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FORBIDDEN = {
    "pipeline": {"components", "launch"},
    "components": {"launch"},
    "pipeline/store": {"pipeline.run", "pipeline.analysis", "pipeline.backfill"},
    "pipeline/run": {"pipeline.analysis", "pipeline.backfill"},
    "pipeline/analysis": {"pipeline.run", "pipeline.backfill"},
    "components/decoding": {"components.backends", "components.tasks"},
    "components/data_sets": {"components.tasks", "components.grading", "components.backends"},
    "components/grading": {"components.tasks", "components.backends"},
}


def modules(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    names |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    return names


def under(name: str, packages: set[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_imports_go_one_way(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    wrong = {str(f): [n for n in modules(f) if under(n, FORBIDDEN[package])] for f in files}
    assert {file: names for file, names in wrong.items() if names} == {}


def test_init_files_are_empty() -> None:
    packages = ("pipeline", "components", "launch")
    inits = [f for p in packages for f in (ROOT / p).rglob("__init__.py")]
    assert inits and all(not file.read_text().strip() for file in inits)


def test_what_stands_behind_the_commands_imports_none_of_them() -> None:
    commands = {
        f"launch.{path.stem}"
        for path in (ROOT / "launch").glob("*.py")
        if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")
    }
    assert len(commands) > 5
    files = list((ROOT / "launch").glob("*/**/*.py"))
    assert len(files) > 10
    assert not {str(f): wrong for f in files if (wrong := modules(f) & commands)}
