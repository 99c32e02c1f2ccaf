"""Compose the real `conf/` in a test, as `launch/run.py` does."""

from collections.abc import Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from launch import api
from launch.config.compose import register_schema
from launch.config.setup import setup_of
from pipeline.protocols import Backend
from pipeline.run.point import Point

ROOT = Path(__file__).parents[2]


def composed(*overrides: str, conf: Path = ROOT / "conf", with_hydra: bool = False) -> DictConfig:
    """The composed config of a command line."""
    register_schema()
    with initialize_config_dir(str(conf), version_base="1.3"):
        return compose("config", list(overrides), return_hydra_config=with_hydra)


def point_of(
    config: DictConfig, overrides: Sequence[str] = (), backend: Backend | None = None
) -> Point:
    """The point of a composed config, as a run builds it; with its own backend if none is given."""
    setup = setup_of(config, overrides)
    return api.point_of(setup, backend or api.open_backend(setup))
