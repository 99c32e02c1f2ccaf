"""A folder that appears under its name only when everything in it is written and on the disk."""

import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from components.models.adapters import EXPORT_RECORD
from components.models.converted_folder import flush
from pipeline.spec import SpecError

_NEW, _OLD = "new", "old"  # within the folder that is written beside the target


@contextmanager
def whole_folder(target: Path, overwrite: bool) -> Iterator[Path]:
    """An empty folder to write into, which becomes `target` when the block ends without an error.

    It lies beside the target, hidden, and is removed after an error. One that a killed process left
    is removed by the next export to the same target; if the process was killed while it replaced an
    older export, that one is put back first.

    Args:
        target: the folder to be made.
        overwrite: whether an older export of that name is replaced.

    Raises:
        SpecError: the target is there and may not be replaced.
    """
    target = target.expanduser().absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    _clear_abandoned(target)
    _refuse_existing(target, overwrite)
    beside = Path(tempfile.mkdtemp(prefix=_prefix(target), dir=target.parent))
    lock = os.open(beside, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)  # held as long as this process lives
    try:
        new = beside / _NEW
        new.mkdir()
        yield new
        _open_to_all(new)
        flush(new)
        _refuse_existing(target, overwrite)
        if target.exists():
            target.rename(beside / _OLD)
        new.rename(target)
        _flush_names(target.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        os.close(lock)


def _prefix(target: Path) -> str:
    return f".{target.name}.part-"


def _refuse_existing(target: Path, overwrite: bool) -> None:
    if not target.exists():
        return
    if not overwrite:
        raise SpecError(f"out={target} is there already: name another, or add overwrite=true")
    ours = target.is_dir() and ((target / EXPORT_RECORD).is_file() or not any(target.iterdir()))
    if not ours:
        raise SpecError(
            f"out={target} is no export (it has no {EXPORT_RECORD}), and overwrite=true removes "
            "nothing else: name another folder"
        )


def _open_to_all(folder: Path) -> None:
    """Give files the rights of any new file: some writers keep theirs to their owner."""
    rights = folder.stat().st_mode & 0o666
    for path in folder.iterdir():
        path.chmod(rights)


def _clear_abandoned(target: Path) -> None:
    """Remove what dead processes left of earlier exports to the same target."""
    for beside in target.parent.glob(f"{glob.escape(_prefix(target))}*"):
        lock = os.open(beside, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue  # its process lives
        else:
            if (beside / _OLD).exists() and not target.exists():
                (beside / _OLD).rename(target)
            shutil.rmtree(beside, ignore_errors=True)
        finally:
            os.close(lock)


def _flush_names(folder: Path) -> None:
    """Bring the names of a folder's files to the disk."""
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
