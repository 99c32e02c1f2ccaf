"""What a run leaves beside its rows: the composed config, its overrides, a log."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from pipeline.point import Point
from pipeline.rows import StoreError, write_atomically

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def write_config_once(point: Point, config: DictConfig) -> None:
    """Write `config.yaml` and `overrides.yaml` unless an earlier attempt did."""
    try:
        point.folder.mkdir(parents=True, exist_ok=True)
        texts = {
            "config.yaml": OmegaConf.to_yaml(config),
            "overrides.yaml": OmegaConf.to_yaml(list(point.overrides)),
        }
        for name, text in texts.items():
            if not (point.folder / name).exists():
                write_atomically(point.folder / name, [text.encode()])
    except OSError as error:
        raise StoreError(
            f"the run folder {point.folder} cannot be written: {error.strerror}; "
            "set run.root or run.dir to a folder that can"
        ) from error


@contextmanager
def log_into(folders: Sequence[Path]) -> Iterator[None]:
    """Append log records to `log.txt` in each folder, and warnings to the terminal."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.INFO)
    terminal = logging.StreamHandler()
    terminal.setLevel(logging.WARNING)
    handlers: list[logging.Handler] = [terminal]
    handlers += [logging.FileHandler(folder / "log.txt", encoding="utf-8") for folder in folders]
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
