"""Talk to a model: `python launch/chat.py model=smollm2`."""

import os

from launch.config.interrupts import guard

if __name__ == "__main__":
    guard()  # before libraries load
os.environ.setdefault(
    "OMP_WAIT_POLICY", "passive"
)  # before torch: spinning waits stall a busy machine

import sys

import hydra
from omegaconf import DictConfig

from launch.config.command_line import ended, run_application
from launch.config.compose import build_backend, register_schema, to_spec
from launch.talk.loop import talk
from launch.talk.session import TalkSpec


@hydra.main(version_base="1.3", config_path="../conf", config_name="chat")
def main(config: DictConfig) -> None:
    """Talk until the input ends."""
    if status := ended(lambda: chat(config)):
        sys.exit(status)


def chat(config: DictConfig) -> int:
    """Talk to what a composed config says. Returns the exit status."""
    spec = to_spec(config)
    assert isinstance(spec, TalkSpec)
    return talk(spec, build_backend(spec))


register_schema()

if __name__ == "__main__":
    sys.exit(run_application(main))
