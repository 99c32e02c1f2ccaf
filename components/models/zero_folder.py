"""Checkpoints that DeepSpeed's ZeRO wrote while it trained: which tag, and which files.

`save_checkpoint(folder, tag)` writes `folder/<tag>/*_states.pt`, one or two files a rank, and the
tag into `folder/latest` once they are whole. It writes neither config.json nor a tokenizer.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from components.models.hashes import tokenizer_folder
from pipeline.spec import SpecError

LATEST = "latest"
STATES = "*_states.pt"
_OPTIMIZER = "*_optim_states.pt"
_STEP = re.compile(r"(?:global_)?step[-_]?(\d+)")
_WEIGHTS = ("*.safetensors", "*.bin")  # a model beside its training state: what a trainer gathered


def zero_tag(path: Path) -> Path | None:
    """The folder of the tag that `path` stands for; None where it is no such checkpoint.

    `path` is that folder itself, or the one that holds tags: then `latest` names it.

    Raises:
        SpecError: `latest` names a tag that is not there, or there is no `latest`.
    """
    if not path.is_dir() or any(any(path.glob(pattern)) for pattern in _WEIGHTS):
        return None
    if _is_tag(path):
        return path
    tags = _tags(path)
    named = named_latest(path)
    if named is None and not tags:
        return None
    if named is not None and _is_tag(path / named):
        return path / named
    if named is not None and not tags:  # a file of this name says nothing by itself
        return None
    why = f"{LATEST} names {named!r}, which is not there" if named else f"it has no file {LATEST}"
    raise SpecError(f"model.path={path} must say which tag is meant: {why}; {_choice(path, tags)}")


def refuse_missing_tag(path: Path, key: str) -> None:
    """Refuse a tag that is not in its folder. Raises SpecError, which lists those that are."""
    tags = [] if path.exists() or not path.parent.is_dir() else _tags(path.parent)
    if tags:
        raise SpecError(
            f"{key}={path} must name a tag that was saved: there is no {path.name!r}; "
            f"{_choice(path.parent, tags)}"
        )


def named_latest(folder: Path) -> str | None:
    """The tag that the file `latest` of a folder names."""
    file = folder / LATEST
    if not file.is_file() or file.stat().st_size > 4096:
        return None
    return file.read_text(encoding="utf-8", errors="replace").strip() or None


def step_of_tag(tag: Path) -> int:
    """The training step in the name of a tag; 0 where it has none."""
    match = _STEP.fullmatch(tag.name)
    return int(match[1]) if match else 0


def config_folder(tag: Path) -> Path | None:
    """Where the model's config.json lies: with the tag, else beside it; None where nowhere."""
    places = (tag, tag.parent)
    return next((place for place in places if (place / "config.json").is_file()), None)


def tokenizer_beside(tag: Path) -> Path | None:
    """Where tokenizer files lie: with the tag, else beside it; None where nowhere."""
    return tokenizer_folder(tag) or tokenizer_folder(tag.parent)


def state_files(tag: Path) -> list[Path]:
    """The files of a tag.

    Raises:
        SpecError: a rank's file is missing, or the model was cut by more than ZeRO.
    """
    files = sorted(tag.glob(STATES))
    foreign = [file.name for file in files if "mp_rank_00" not in file.name]
    if foreign:
        raise SpecError(
            f"model.path={tag} must be cut by ZeRO alone, and {foreign[0]} says that tensors or "
            "layers were spread over ranks too: consolidate it with the code that trained it"
        )
    weights = {_rank(file) for file in tag.glob(_OPTIMIZER)}
    shapes = {_rank(file) for file in files} if _is_stage_3(files) else weights
    both = weights | shapes
    missing = sorted(set(range(max(both, default=0) + 1)) - (weights & shapes))
    if not weights or missing:
        ranks = ", ".join(map(str, missing)) or "all"
        raise SpecError(
            f"model.path={tag} lacks files of rank {ranks} (*_model_states.pt and "
            "*_optim_states.pt, which holds the weights): copy those of every rank"
        )
    return files


def is_stage_3(tag: Path) -> bool:
    """Whether weights were cut over the ranks that saved a tag, as ZeRO's stage 3 alone does."""
    return _is_stage_3(tag.glob(STATES))


def model_states(tag: Path, rank: int) -> Path:
    """The file with names, shapes and buffers of a rank, of stage 3."""
    return tag / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt"


def optimizer_states(tag: Path, rank: int) -> Path:
    """The file with the weights of a rank, of stage 3; DeepSpeed's name tells the type too."""
    name = f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
    of_bfloat16 = tag / f"bf16_{name}"
    return of_bfloat16 if of_bfloat16.is_file() else tag / name


def refuse_lost_ranks(tag: Path, ranks: int) -> None:
    """Refuse a tag of stage 3 without all files of its ranks. Raises SpecError, which names one."""
    files = [make(tag, n) for n in range(ranks) for make in (model_states, optimizer_states)]
    lost = [file.name for file in files if not file.is_file()]
    if lost:
        raise SpecError(
            f"model.path={tag} was saved by {ranks} ranks, and lacks {', '.join(lost[:4])}: copy "
            "the files of every rank"
        )


def _is_stage_3(files: Iterable[Path]) -> bool:
    """Stage 3 has a file of the model for each rank; 1 and 2 have one for all."""
    return any(f.name.startswith("zero_pp_rank") and "model_states" in f.name for f in files)


def _rank(file: Path) -> int:
    match = re.search(r"zero_pp_rank_(\d+)_", file.name)
    return int(match[1]) if match else 0


def _is_tag(folder: Path) -> bool:
    return folder.is_dir() and any(folder.glob(STATES))


def _tags(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if _is_tag(path))


def _choice(folder: Path, tags: list[str]) -> str:
    return f"name one of {', '.join(tags) or 'none'}: model.path={folder}/<tag>"
