"""Training checkpoints of DeepSpeed's ZeRO, stages 1 to 3, as one set of float32 weights.

DeepSpeed's own consolidation does the work, and opens no pickle that runs a program.
"""

import contextlib
import io
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from components.models.weight_files import read_json
from components.models.zero_folder import state_files
from components.models.zero_states import READING_FAILS, numbers_only
from pipeline.spec import SpecError


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
    with numbers_only(f"a file of {tag}"):
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

        try:
            with contextlib.redirect_stdout(io.StringIO()):  # it prints its progress
                state: dict[str, Any] = get_fp32_state_dict_from_zero_checkpoint(
                    str(tag.parent), tag=tag.name, lazy_mode=True
                )
        except READING_FAILS as error:
            raise SpecError(f"{tag} cannot be put together: {error}") from error
    return state


def _without_doubles(state: Mapping[str, Any]) -> dict[str, Any]:
    """Each weight once, under the first of its names: the others are tied to it."""
    first: dict[int, str] = {}
    for name, tensor in state.items():
        first.setdefault(id(tensor), name)
    return {name: tensor for name, tensor in state.items() if first[id(tensor)] == name}
