"""What files of a ZeRO checkpoint hold, opened so that no pickle of them runs a program.

DeepSpeed's own tools unpickle whatever they find. Here a file may hold tensors, plain values and a
few classes of DeepSpeed's that hold nothing but numbers.
"""

import contextlib
import os
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from components.models.converters.state_dicts import what_is_named
from components.models.zero_folder import model_states, refuse_lost_ranks
from pipeline.spec import SpecError

_FORCE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"  # torch obeys it whatever its caller says
READING_FAILS = (ValueError, KeyError, OSError, RuntimeError, EOFError)


@contextlib.contextmanager
def numbers_only(subject: str) -> Iterator[None]:
    """Let `torch.load` open tensors and plain values alone, whoever calls it and asks for what.

    Args:
        subject: what is opened, for the message of an error.

    Raises:
        SpecError: DeepSpeed is not installed, or a pickle holds more.
    """
    try:
        from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
        from deepspeed.runtime.zero.config import ZeroStageEnum
        from deepspeed.utils.tensor_fragment import fragment_address
    except ImportError as error:
        raise SpecError(
            f"{subject} is of a checkpoint of ZeRO, which needs DeepSpeed: "
            "pip install --no-build-isolation -e '.[distributed]'"
        ) from error
    known = [ZeroStageEnum, LossScaler, DynamicLossScaler, fragment_address]
    before = os.environ.get(_FORCE)
    os.environ[_FORCE] = "1"
    try:
        with torch.serialization.safe_globals(known):
            yield
    except pickle.UnpicklingError as error:
        raise SpecError(
            f"{subject} is a pickle that holds more than tensors and plain values"
            f"{what_is_named(error)}, and is not opened, since a pickle can run any program: where "
            "you trust it, run DeepSpeed's zero_to_fp32.py yourself, and set model.path to what it "
            "writes"
        ) from error
    finally:
        os.environ.pop(_FORCE)
        if before is not None:
            os.environ[_FORCE] = before


def read_states(file: Path) -> Mapping[str, Any]:
    """The content of a `*_states.pt`; its tensors are read from the disk when they are used.

    Raises:
        SpecError: names the file, which is missing, cut off or holds more than numbers.
    """
    with numbers_only(str(file)):
        try:
            states = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
        except READING_FAILS as error:
            first = str(error).partition("\n")[0]
            raise SpecError(
                f"{file} is cut off, or no file of DeepSpeed's: {first}; copy it again"
            ) from error
    if not isinstance(states, dict):
        raise SpecError(f"{file} must hold a dictionary of states, got {type(states).__name__}")
    return states


def saved_ranks(tag: Path) -> int:
    """How many ranks saved a tag of stage 3, whose files are all there.

    Raises:
        SpecError: files are missing or damaged.
    """
    ranks = int(read_states(model_states(tag, 0)).get("dp_world_size", 0))
    refuse_lost_ranks(tag, ranks)
    return ranks
