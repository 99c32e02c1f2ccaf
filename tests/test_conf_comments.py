"""Every key of `conf/` is explained where it stands: on its line, or above its block."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.configs import ROOT

FILES = sorted((ROOT / "conf").rglob("*.yaml"))
UNDERSTOOD = ("defaults:", "_target_:", "{}", "- ")  # Hydra's words, and entries of lists


def unexplained(path: Path) -> Iterator[str]:
    """Lines with a key outside literal texts that no comment of their block or line speaks of."""
    explained, text_indent = False, None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        words, indent = line.strip(), len(line) - len(line.lstrip())
        if text_indent is not None and (not words or indent > text_indent):
            continue
        text_indent = indent if words.rstrip("-+").endswith((": |", ": >")) else None
        if not words:
            explained = False
        elif words.startswith("#"):
            explained = explained or words != "# @package _global_"
        elif not (explained or " #" in line or words.startswith(UNDERSTOOD) or words[-1] == ":"):
            yield f"{path.parent.name}/{path.name}:{number}: {words}"


def test_every_key_has_a_phrase() -> None:
    assert len(FILES) > 80
    assert not [line for path in FILES for line in unexplained(path)]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("# Why.\na: 1\nb:\n  c: 2\n", []),
        ("b:\n  c: 2\n", ["c: 2"]),
        ("a: 1  # why\nb: 2\n", ["b: 2"]),
        ("# Why.\na: 1\n\nb: 2\n", ["b: 2"]),
        ("# @package _global_\na: 1\n", ["a: 1"]),
        ("# Why.\na: |-\n  text: of a prompt\n\n  more: of it\n", []),
    ],
)
def test_a_key_without_one_is_found(text: str, lines: list[str], tmp_path: Path) -> None:
    path = tmp_path / "new.yaml"
    path.write_text(text)
    assert [line.partition(": ")[2] for line in unexplained(path)] == lines
