"""Whether the libraries that compare texts are there."""

from importlib import import_module
from typing import Any

from pipeline.spec import SpecError


def library(module: str, package: str, metric: str) -> Any:
    """A module of the extra `scoring`, imported. Raises SpecError where it is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise SpecError(
            f"{metric} needs the package {package}, which is not installed ({error}): "
            "pip install 'rethink-pipeline[scoring]'"
        ) from error
