"""Folders of the cache that are made once from a checkpoint, and appear only when complete."""

import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

_LOG = logging.getLogger(__name__)
_SEAL = "rethink.json"  # written last: names every file of the folder with its size


def converted_folder(target: Path, called: str, make: Callable[[Path], None]) -> Path:
    """The folder `target`, made by `make(folder)` if it is not there yet.

    Several processes may ask at once: one makes it, the others wait and use it. A folder appears
    under its name only when it is complete, so a conversion that was cut off is never loaded.

    Args:
        target: the folder; its name says what it is made from.
        called: what is converted, for the log.
        make: writes the folder that it is given, which does not exist yet.

    Raises:
        OSError: the cache cannot be written. Whatever `make` raises passes through.
    """
    if _is_whole(target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_name(f"{target.name}.lock")):
        if not _is_whole(target):
            _replace(target, called, make)
    return target


def _replace(target: Path, called: str, make: Callable[[Path], None]) -> None:
    """Make `target`. The caller holds its lock, so any older files of that name are abandoned."""
    for abandoned in [target, *target.parent.glob(f"{target.name}.part-*")]:
        shutil.rmtree(abandoned, ignore_errors=True)
    _LOG.info("converting %s, once", called)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"{target.name}.part-", dir=target.parent) as part:
        folder = Path(part) / "model"
        make(folder)
        _seal(folder)
        folder.rename(target)
    _LOG.info("converted %s in %.0f s: %s", called, time.monotonic() - start, target)


def flush(folder: Path) -> dict[str, int]:
    """Bring every file below a folder to the disk. Returns their sizes by path within it."""
    sizes = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        sizes[path.relative_to(folder).as_posix()] = path.stat().st_size
    return sizes


def _seal(folder: Path) -> None:
    """Flush every file to disk and write down the size of each."""
    (folder / _SEAL).write_text(json.dumps(flush(folder), indent=1))


def _is_whole(folder: Path) -> bool:
    seal = folder / _SEAL
    if not seal.is_file():
        return False
    sizes: dict[str, int] = json.loads(seal.read_text())
    files = {name: folder / name for name in sizes}
    return all(
        path.is_file() and path.stat().st_size == sizes[name] for name, path in files.items()
    )
