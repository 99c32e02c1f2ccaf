"""Compose the real `conf/` in a test, as `launch/run.py` does."""

from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from launch.config.compose import register_schema

ROOT = Path(__file__).parents[2]


def composed(*overrides: str, conf: Path = ROOT / "conf", with_hydra: bool = False) -> DictConfig:
    """The composed config of a command line."""
    register_schema()
    with initialize_config_dir(str(conf), version_base="1.3"):
        return compose("config", list(overrides), return_hydra_config=with_hydra)
