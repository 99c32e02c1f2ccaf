"""A run as it was composed: what a door hands to whatever builds and runs its point."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from omegaconf import DictConfig, OmegaConf

from launch.config.compose import to_spec
from pipeline.spec import RunSpec, digest


@dataclass(frozen=True, slots=True)
class RunSetup:
    """One run, before its data and its model's identity are known. It travels to jobs.

    `spec` is its typed form. `config` is the composed config that it was made from, as plain data
    with its interpolations, which the run folder keeps. `overrides` are the words of the command
    line, `choices` the option of each group; `swept_keys` are those whose values differ between
    the points of its sweep, if it is part of one.
    """

    spec: RunSpec
    config: Any = field(default_factory=dict)
    overrides: Sequence[str] = ()
    choices: dict[str, Any] = field(default_factory=dict)
    swept_keys: Sequence[str] = ()

    @property
    def config_text(self) -> str:
        """The composed config as YAML."""
        return OmegaConf.to_yaml(OmegaConf.create(self.config))

    @property
    def swept(self) -> dict[str, str]:
        """The swept keys with this run's values, as they were typed."""
        typed = dict(o.lstrip("+~").partition("=")[::2] for o in self.overrides)
        return {key: typed[key] for key in self.swept_keys if key in typed}

    @property
    def load_key(self) -> str:
        """Runs with the same one can share a loaded model."""
        return digest([asdict(self.spec.model), self.spec.backend, self.spec.quantization])


def setup_of(
    config: DictConfig, overrides: Sequence[str] = (), choices: dict[str, Any] | None = None
) -> RunSetup:
    """The run of a config that is composed already. Raises SpecError."""
    plain = OmegaConf.to_container(config)
    return RunSetup(to_spec(config), plain, tuple(overrides), choices or {})
