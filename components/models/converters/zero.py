"""Training checkpoints of DeepSpeed's ZeRO, stages 1 to 3, as one set of float32 weights.

DeepSpeed's own consolidation does the work. It opens pickles; here they may hold tensors, plain
values and a few classes of DeepSpeed's that hold nothing but numbers, so that no code is run.
"""

import contextlib
import io
import json
import os
import pickle
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from components.models.weight_files import read_json
from components.models.zero_folder import state_files
from pipeline.spec import SpecError

_FORCE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"  # torch obeys it whatever its caller says


class StoredConfig:
    """The configs of a folder as they are, but for the type of the weights."""

    def __init__(self, folder: Path) -> None:
        self._values = read_json(folder / "config.json") | {"dtype": "float32"}
        self._values.pop("torch_dtype", None)
        self._generation = folder / "generation_config.json"

    def save_pretrained(self, folder: Path) -> None:
        """Write config.json and, if there is one, generation_config.json."""
        (folder / "config.json").write_text(json.dumps(self._values, indent=1))
        if self._generation.is_file():
            shutil.copy(self._generation, folder)


def convert(tag: Path, config: Path) -> tuple[StoredConfig, Mapping[str, Any]]:
    """The config in the folder `config`, and the weights of a tag, on the CPU.

    Values of the mapping have `contiguous()`, which puts the tensor together.

    Raises:
        SpecError: DeepSpeed is not installed, a file is missing, torn or wants code to be run, or
            the ranks' files do not fit together.
    """
    state_files(tag)
    return StoredConfig(config), _without_doubles(_consolidated(tag))


def tokenizer(tag: Path) -> PreTrainedTokenizerBase | None:
    """None: the tokenizer's files are used where they lie."""
    return None


def _consolidated(tag: Path) -> dict[str, Any]:
    try:
        from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
        from deepspeed.runtime.zero.config import ZeroStageEnum
        from deepspeed.utils.tensor_fragment import fragment_address
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    except ImportError as error:
        raise SpecError(
            f"model.path={tag} is a checkpoint of ZeRO, which DeepSpeed puts together: "
            "pip install --no-build-isolation -e '.[distributed]'"
        ) from error
    known = [ZeroStageEnum, LossScaler, DynamicLossScaler, fragment_address]
    try:
        with _weights_only(), torch.serialization.safe_globals(known):
            with contextlib.redirect_stdout(io.StringIO()):  # it prints its progress
                state: dict[str, Any] = get_fp32_state_dict_from_zero_checkpoint(
                    str(tag.parent), tag=tag.name, lazy_mode=True
                )
    except pickle.UnpicklingError as error:
        wanted = str(error).partition("GLOBAL ")[2].split(" ")[0]
        names = f" (it names {wanted})" if wanted else ""
        raise SpecError(
            f"a file of {tag} is a pickle that holds more than tensors and plain values{names}, "
            "and is not opened, since a pickle can run any program: where you trust it, run "
            "DeepSpeed's zero_to_fp32.py yourself, and set model.path to what it writes"
        ) from error
    except (ValueError, KeyError, OSError, RuntimeError, EOFError) as error:
        raise SpecError(f"{tag} cannot be put together: {error}") from error
    return state


@contextlib.contextmanager
def _weights_only() -> Iterator[None]:
    """Let torch.load open tensors alone, whatever it is asked for."""
    before = os.environ.get(_FORCE)
    os.environ[_FORCE] = "1"
    try:
        yield
    finally:
        os.environ.pop(_FORCE)
        if before is not None:
            os.environ[_FORCE] = before


def _without_doubles(state: Mapping[str, Any]) -> dict[str, Any]:
    """Each weight once, under the first of its names: the others are tied to it."""
    first: dict[int, str] = {}
    for name, tensor in state.items():
        first.setdefault(id(tensor), name)
    return {name: tensor for name, tensor in state.items() if first[id(tensor)] == name}
