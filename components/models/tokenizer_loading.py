"""Loads the tokenizer of a checkpoint."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING

from components.models.architecture import register
from components.models.checkpoint import Checkpoint
from components.models.source import Source, local_folder
from components.models.weight_files import check_texts, read_json
from pipeline.spec import ModelSpec, SpecError
from pipeline.store.files import read_text


def load_tokenizer(checkpoint: Checkpoint, model: ModelSpec) -> PreTrainedTokenizerBase:
    """The tokenizer of a prepared checkpoint, with `model.chat_template` in place of its own.

    Raises:
        SpecError: its files are missing or broken; the message names them.
    """
    if checkpoint.architecture:
        register(checkpoint.architecture)
    if checkpoint.tokenizer.kind == "architecture":
        tokenizer = _without_files(checkpoint.weights)
    else:
        tokenizer = _read(checkpoint.tokenizer, model.trust_remote_code)
    if model.chat_template:
        tokenizer.chat_template = read_text(Path(model.chat_template), "model.chat_template")
    return tokenizer


def _read(source: Source, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    folder = local_folder(source)
    if folder:
        check_texts(folder)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            source.location, revision=source.revision, trust_remote_code=trust_remote_code
        )
    except Exception as error:  # the tokenizers library raises nothing narrower
        file = folder / "tokenizer.json" if folder else None
        if file is not None and file.is_file():
            read_json(file)  # names the line where it breaks off
        where = file if file is not None and file.is_file() else source.location
        raise SpecError(
            f"the tokenizer in {where} cannot be read by the installed tokenizers "
            f"and transformers: {type(error).__name__}: {error}"
        ) from error
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    return tokenizer


def _without_files(weights: Source) -> PreTrainedTokenizerBase:
    """A tokenizer of the class that an architecture registered for the model's config."""
    config = AutoConfig.from_pretrained(weights.location, revision=weights.revision)
    mapping: Any = TOKENIZER_MAPPING
    tokenizer = mapping[type(config)]()
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    return tokenizer
