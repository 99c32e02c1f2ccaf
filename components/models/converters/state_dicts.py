"""Reads weight files that other projects wrote, as plain names and tensors, running no code."""

import pickle
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from pipeline.spec import SpecError

WRAPPERS = ("_orig_mod.", "module.")  # what torch.compile and DistributedDataParallel put in front


def read_pickle(path: Path, classes: Iterable[tuple[type, str]] = ()) -> Any:
    """What a `torch.save` file holds, tensors on the CPU.

    Args:
        path: the file.
        classes: classes of ours, each with the import path under which the file names it. Anything
            else that is no tensor, container or number is refused, so that no code is run.

    Raises:
        SpecError: the file is torn, or wants code to be run.
    """
    try:
        with torch.serialization.safe_globals(list(classes)):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise SpecError(
            f"{path} must hold tensors and plain values only, and holds other objects"
            f"{what_is_named(error)}: "
            "save it again as a plain state dict, or as safetensors"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError) as error:
        raise SpecError(f"{path} cannot be read, it may be torn: {error}") from error


def what_is_named(error: pickle.UnpicklingError) -> str:
    """The object that a refused pickle asks for, in brackets; nothing where it is not told."""
    wanted = str(error).partition("GLOBAL ")[2].split(" ")[0]
    return f" (it names {wanted})" if wanted else ""


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file. Raises SpecError where it is torn."""
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError) as error:
        raise SpecError(f"{path} cannot be read, it may be torn: {error}") from error
    return tensors


def unwrapped(state: Mapping[str, Any], path: Path) -> dict[str, Tensor]:
    """A state dict under its plain names. Raises SpecError where it holds what is no tensor."""
    tensors = {}
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise SpecError(f"{path} must be a state dict of tensors: {name!r} is {type(value)}")
        tensors[plain_name(name)] = value
    return tensors


def plain_name(name: str) -> str:
    """A parameter's name without what wrappers put in front of it."""
    while name.startswith(WRAPPERS):
        name = name.partition(".")[2]
    return name


def demand(tensors: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int]], path: Path) -> None:
    """Refuse tensors that are missing, not expected, or of another shape.

    Raises:
        SpecError: with the names.
    """
    missing = sorted(shapes.keys() - tensors.keys())
    strange = sorted(tensors.keys() - shapes.keys())
    wrong = [
        f"{name} is {list(tensors[name].shape)}, not {list(shape)}"
        for name, shape in shapes.items()
        if name in tensors and list(tensors[name].shape) != list(shape)
    ]
    problems = [
        f"{word} {', '.join(names[:8])}{' ...' if len(names) > 8 else ''}"
        for word, names in (("missing:", missing), ("not expected:", strange), ("shape:", wrong))
        if names
    ]
    if problems:
        raise SpecError(f"{path} does not hold what its config tells; {'; '.join(problems)}")
