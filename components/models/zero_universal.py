"""ZeRO-3's training checkpoints as DeepSpeed's universal ones, with a file for each weight.

DeepSpeed's own `ds_to_universal` makes them in the cache. Any number of ranks loads one, each its
slice of a weight after the other, so that no process ever holds the model.
"""

import argparse
import contextlib
import io
from pathlib import Path

from components.models.converted_folder import converted_folder
from components.models.zero_folder import state_files
from components.models.zero_states import READING_FAILS, numbers_only, read_states
from pipeline.spec import SpecError

_VERSION = 1  # of the conversion; a higher number converts again
_WEIGHT = "fp32.pt"


def universal_folder(tag: Path, content: str, cache: Path) -> Path:
    """The universal checkpoint of a tag of stage 3, made if it is not in `cache` yet.

    It holds `zero/<name>/fp32.pt` for each weight that was trained.

    Args:
        tag: the folder of the tag.
        content: hash of its files, which names the result.
        cache: the cache folder.

    Raises:
        SpecError: the tag cannot be converted, or `cache` cannot be written.
    """
    name = f"zero-universal-{tag.parent.name}-{tag.name}-{content[:16]}-v{_VERSION}"
    try:
        return converted_folder(
            cache / "models" / name, str(tag), lambda folder: _convert(tag, folder)
        )
    except OSError as error:
        raise SpecError(
            f"{tag} could not be converted into run.cache_dir={str(cache)!r}: {error}"
        ) from error


def _convert(tag: Path, folder: Path) -> None:
    folder.mkdir()
    for file in state_files(tag):
        read_states(file)  # one that is damaged is named
    with numbers_only(f"a file of {tag}"):
        from deepspeed.checkpoint.ds_to_universal import main

        arguments = argparse.Namespace(
            input_folder=str(tag),
            output_folder=str(folder),
            num_extract_workers=1,  # one runs in this process, where pickles are refused
            num_merge_workers=1,
            keep_temp_folder=False,
            strict=True,
            inject_missing_state=False,
        )
        said = io.StringIO()  # it prints its progress
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                main(arguments)
        except OSError:
            raise
        except (*READING_FAILS, AssertionError, LookupError, TypeError) as error:
            raise SpecError(
                f"{tag} cannot be made universal, which DeepSpeed's ds_to_universal does for "
                f"states of Adam ({type(error).__name__}: {error}): set "
                "backend.load_checkpoint=consolidated"
            ) from error
    for file in folder.rglob("*"):
        if file.is_file() and file.name != _WEIGHT:
            file.unlink()  # Adam's moments, two thirds of it, and copies of the tag's files
