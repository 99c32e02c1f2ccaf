"""What a word of the command line stands for: a run folder's line, a model by its path, an id."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from textwrap import wrap

from pipeline.spec import SpecError
from pipeline.store.stored_record import read_record

CONF = Path(__file__).resolve().parents[2] / "conf"
CONFIG_FLAGS = ("--config-path", "-cp", "--config-dir", "-cd", "--config-name", "-cn")
HELP_WIDTH = 100  # characters of a line
LAUNCHER = "hydra.launcher."
SBATCH = f"{LAUNCHER}additional_parameters."  # options that Slurm has and the schema does not


def quoted(text: str) -> str:
    """Any text as the value of an override.

    Hydra's grammar takes backslashes as they are, but for those before a quotation mark.
    """
    body = re.sub(r'(\\*)("|$)', lambda m: m[1] * 2 + m[2].replace('"', '\\"'), text)
    return f'"{body}"'


def options_of_groups(choices: Mapping[str, object], searched: Sequence[str]) -> str:
    """What `--help` lists: every group that a run chooses from, with its options, a line each.

    Groups and options stand in conf/ and in the folders of `hydra.searchpath` (`file://...`). What
    lies deeper than a group, such as the presets of earlier projects, is left out.
    """
    folders = [CONF, *(Path(place.removeprefix("file://")) for place in searched)]
    lines = []
    for group in sorted(choices):
        files = (file for folder in folders for file in (folder / group).glob("*.yaml"))
        names = ", ".join(sorted({file.stem for file in files}))
        if names and "/" not in group:
            lines += wrap(f"{group}: {names}", HELP_WIDTH, subsequent_indent="  ")
    return "\n".join(lines)


def overrides_of_folders(words: Sequence[str]) -> list[str]:
    """`rerun=FOLDER` replaced by the overrides that the run folder keeps; the line's own win.

    Raises:
        SpecError: the folder keeps none, or is given as a configuration folder.
    """
    for flag, value in pairwise([*words, ""]):
        name, _, attached = flag.partition("=")
        folder = Path(attached or value)
        if name in CONFIG_FLAGS[:4] and (folder / "run.json").exists():
            raise SpecError(f"{folder} is a run folder: rerun={folder} runs its spec again")
    folders = [word.partition("=")[2] for word in words if word.startswith("rerun=")]
    kept = [override for folder in folders for override in overrides_in(Path(folder))]
    own = [word for word in words if not word.startswith("rerun=")]
    typed = {word.lstrip("+~").partition("=")[0] for word in own}
    return [o for o in kept if o.lstrip("+~").partition("=")[0] not in typed] + own


def overrides_in(folder: Path) -> list[str]:
    """The latest command line that a run folder was opened with; its run.json has it.

    `overrides.yaml` is written once and keeps the first. Raises SpecError where it is not there.
    """
    path = folder / "run.json"
    if not path.is_file():
        raise SpecError(f"rerun must name a run folder, and there is no {path}")
    overrides = read_record(path, "overrides")["overrides"]
    if not isinstance(overrides, list) or not all(isinstance(o, str) for o in overrides):
        raise SpecError(f"rerun must name a run folder, {path} has no list of overrides")
    return [str(override) for override in overrides]


def spelled_out(word: str) -> list[str]:
    """A word of the line as Hydra needs it: ids that look like numbers, models by path, a prompt.

    `task.prompt=TEXT` is one text of `task.texts`, whatever characters it holds.
    """
    key, _, value = word.partition("=")
    if key.startswith(SBATCH):
        return [f"++{word}"]
    if key == "task.prompt":
        return [f"task.texts=[{_quoted_text(value)}]"]
    ids = re.fullmatch(r"\[([^][{}'\"\\\\]+)\]", value) if key == "run.ids" else None
    if ids:  # 695e0514 is an id, and to Hydra a number too large to be one
        quoted = ",".join(f'"{name.strip()}"' for name in ids[1].split(","))
        return [f"run.ids=[{quoted}]"]
    if key == "model" and "/" in value and not set(value) & set("[({"):
        return _by_path(value.split(","))
    return [word]


def _quoted_text(text: str) -> str:
    """A text that neither Hydra nor OmegaConf reads anything into."""
    literal = re.sub(r"(\\*)\$\{", lambda m: m[1] * 2 + "\\${", text)
    inner = re.sub(r'(\\*)("|\Z)', lambda m: m[1] * 2 + ('\\"' if m[2] else ""), literal)
    return f'"{inner}"'


def _by_path(models: Sequence[str]) -> list[str]:
    """Models by hub id, folder or file, one or several for a sweep; options stay options.

    Raises:
        SpecError: a sweep names models by path beside options of `conf/model/`.
    """
    named = [(CONF / "model" / f"{model}.yaml").exists() for model in models]
    if all(named):
        return [f"model={','.join(models)}"]
    if any(named) or not all("/" in model for model in models):
        raise SpecError(
            f"model={','.join(models)} must name options of conf/model/ only, or hub ids, folders "
            "and files only: run the two kinds one after the other"
        )
    return ["model=local", f"model.path={','.join(models)}"]
