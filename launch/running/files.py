"""What a run leaves beside its rows: the composed config, its overrides, a log."""

import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from omegaconf import OmegaConf

from pipeline.run.point import Point
from pipeline.store.files import StoreError, write_atomically

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def write_config_once(point: Point, config: str) -> None:
    """Write the config (YAML) and the overrides beside the rows, unless an attempt did before."""
    overrides = OmegaConf.to_yaml(list(point.overrides))
    with writing(point.folder):
        for name, text in {"config.yaml": config, "overrides.yaml": overrides}.items():
            if not (point.folder / name).exists():
                write_atomically(point.folder / name, [text.encode()])


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Make a folder and write into it. Raises StoreError where that cannot be done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise StoreError(
            f"the run folder {folder} cannot be written: {error.strerror}; "
            "set run.root or run.dir to a folder that can"
        ) from error


def log_name(point: Point) -> str:
    """The log file of this process for a point: no two processes write one file."""
    if point.spec.run.shards == 1:
        return "log.txt"
    return f"log-{socket.gethostname()}-{os.getpid()}.txt"


@contextmanager
def log_into(files: Sequence[Path]) -> Iterator[None]:
    """Append log records to each file, and warnings to the terminal."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.INFO)
    terminal = logging.StreamHandler()
    terminal.setLevel(logging.WARNING)
    handlers: list[logging.Handler] = [terminal]
    handlers += [
        logging.FileHandler(file, encoding="utf-8", errors="backslashreplace") for file in files
    ]
    for handler in handlers:
        handler.setFormatter(logging.Formatter(FORMAT))
        root.addHandler(handler)
    try:
        yield
    finally:
        root.setLevel(level)
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()
