"""Finds row files of any number of runs, ours and the original's, and reads them as streams."""

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.spec import SpecError, require
from pipeline.store.files import Row

STEP = re.compile(r"step(\d+)")  # as the original looks for it, anywhere in the path
STEP_FOLDER = re.compile(r"(?:[a-z]+-)?(?:step|checkpoint)-?\d+", re.IGNORECASE)
TEMPERATURE = re.compile(r"(?:^|[-_/])temp-?(\d+(?:\.\d+)?)", re.IGNORECASE)
NO_ROWS = ("journal-", "failures")
WORKING = ".backfill"  # ends the name of a folder with rows that are not finished


@dataclass(frozen=True, slots=True)
class RowFile:
    """A file of rows: which run it belongs to, and what its path says for rows that do not."""

    path: Path
    run: str  # a name that is short and unique among the files found together
    step: int
    temperature: float | None

    @property
    def folder(self) -> str:
        """Rows of one folder replace each other by key, whichever of its files they are in."""
        return str(self.path.parent)


def refuse_own_input(output: str | Path | None, read: Iterable[RowFile], key: str) -> None:
    """Refuse to write a result over a file of the rows it is made of. Raises SpecError."""
    path = Path(output) if output else None
    if path is not None and path.exists() and any(path.samefile(file.path) for file in read):
        rule = "name another file than the rows that are read, which would be lost"
        raise SpecError(f"{key} must {rule}, got {str(path)!r}")


def find(roots: Sequence[str | Path], split: str | None = None) -> list[RowFile]:
    """Row files below `roots` by step, then path; a file given by name is taken as it is.

    Below a folder these are `*.jsonl` whose path holds `step` and digits; `split` is a part of the
    file's name.

    Raises:
        SpecError: a root that does not exist, or no file at all.
    """
    paths: dict[Path, None] = {}
    for given in roots:
        require(str(given) != "", "the runs", "be folders, or files of rows", "")
        root = Path(given)
        if not root.exists():
            raise SpecError(f"{root} does not exist; give run folders, or files of rows")
        if root.is_file():
            paths[root] = None
        else:
            below = sorted(root.rglob("*.jsonl"))
            paths |= dict.fromkeys(p for p in below if _has_rows(p, root, split))
    if not paths:
        named = f" with {split!r} in their name" if split else ""
        raise SpecError(
            f"no row files{named} below {', '.join(map(str, roots))}; "
            "they end in .jsonl and have `step` and digits in their path"
        )
    names = _run_names([_run_folder(path) for path in paths])
    found = [RowFile(p, names[_run_folder(p)], path_step(p) or 0, _temperature(p)) for p in paths]
    return sorted(found, key=lambda file: (file.step, str(file.path)))


def path_step(path: Path) -> int | None:
    """The first `step<digits>` of a path."""
    match = STEP.search(str(path))
    return int(match[1]) if match else None


def _has_rows(path: Path, root: Path, split: str | None) -> bool:
    named = not path.name.startswith(NO_ROWS) and (split is None or split in path.name)
    parts = path.relative_to(root).parts
    finished = not any(part.startswith(".") or part.endswith(WORKING) for part in parts)
    return named and finished and path_step(path) is not None


def _run_folder(path: Path) -> Path:
    folder = path.absolute().parent
    return folder.parent if STEP_FOLDER.fullmatch(folder.name) else folder


def _run_names(folders: Iterable[Path]) -> dict[Path, str]:
    """Folders by the part of their path that tells them apart, at least their own name."""
    unique = sorted(set(folders))
    shared = Path(os.path.commonpath([folder.parent for folder in unique]))
    return {folder: folder.relative_to(shared).as_posix() for folder in unique}


def _temperature(path: Path) -> float | None:
    """What a folder such as `temp-0.3` or `-temp005` says."""
    match = TEMPERATURE.search(str(path.absolute().parent))
    if not match:
        return None
    digits = match[1]
    return float(f"0.{digits[1:]}") if re.fullmatch(r"0\d+", digits) else float(digits)


def parse(raw: bytes) -> Row | None:
    """One line as a row; None for what is no JSON object. Reads NaN, as the original writes it."""
    try:
        value: Any = json.loads(raw)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def read_at(path: Path, offset: int, length: int) -> bytes:
    """The bytes of one line."""
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)


def lines(path: Path, offsets: Sequence[int]) -> Iterator[bytes]:
    """The lines of a file that begin at `offsets`, ascending, newline included."""
    with path.open("rb") as file:
        for offset in offsets:
            file.seek(offset)
            yield file.readline()
