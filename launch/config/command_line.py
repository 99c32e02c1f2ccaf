"""How commands read their line and end: what a person got wrong is one sentence and status 2."""

import io
import os
import re
import shlex
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)

from launch.config.cluster import Cluster
from launch.config.interrupts import INTERRUPTED, SENTENCE, interruptible
from launch.config.words import CONF, CONFIG_FLAGS, LAUNCHER, overrides_of_folders, spelled_out
from pipeline.protocols import BackendLostError
from pipeline.spec import ModelSpec, Run, Sampling, SpecError
from pipeline.store.files import StoreError

REFUSALS = (SpecError, StoreError, BackendLostError, HydraException, OmegaConfBaseException)
REFUSED = 2
TRACEBACKS = "HYDRA_FULL_ERROR"  # Hydra hands exceptions on where it is 1, else it prints them
FLAGS = ("-h", "--help", "-m", "--multirun")
COMPLETION = ("-sc", "--shell-completion")
# Keys of a config, beside the groups.
KEYS = ("run", "backfill", "entropy", "mode", "out", "overwrite", "check", "hydra")
# Keys of other libraries, and what to write in their place.
ELSEWHERE = {
    "task.texts": "task.prompt and task.texts are of task=prompts",
    "sampling.do_sample": "sampling=greedy draws nothing, any temperature above 0 draws",
    "sampling.num_return_sequences": "write sampling.num_samples",
    "sampling.n": "write sampling.num_samples",
    "sampling.max_tokens": "write sampling.max_new_tokens",
    "sampling.min_tokens": "write sampling.min_new_tokens",
    "sampling.seed": "write run.seed",
    "sampling.assistant_model": "write backend.assistant_model, which changes no text",
    "sampling.penalty_alpha": "Transformers has left contrastive search to remote code, which is "
    "not run here; sampling.no_repeat_ngram_size and sampling.typical_p act against dull text",
    "sampling.num_beam_groups": "Transformers has left diverse beams to remote code, which is not "
    "run here; sampling.num_samples draws different texts",
}
PARTS = {"sampling": Sampling, "run": Run, "model": ModelSpec}


def ended(work: Callable[[], int | None], interrupted: str = SENTENCE) -> int:
    """The status of `work`; 2 where it was refused or a file failed, with the reason printed.

    Ctrl-C ends it with status 130 and the sentence `interrupted`, without a traceback.
    Characters that standard output cannot show are printed as escapes.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with interruptible():
            status = work() or 0
            sys.stdout.flush()
            return status
    except BrokenPipeError:  # whoever read this, such as `head`, has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return INTERRUPTED
    except (*REFUSALS, OSError) as error:
        print(f"error: {error_sentence(error)}", file=sys.stderr)
        return REFUSED


def run_application(application: Callable[[], None]) -> int:
    """Run a Hydra application as a command. With HYDRA_FULL_ERROR=1 tracebacks are shown."""
    wanted = os.environ.get(TRACEBACKS) == "1"
    os.environ[TRACEBACKS] = "1"

    def work() -> None:
        sys.argv[1:] = arguments(sys.argv[1:])
        application()

    if wanted:
        work()
        return 0
    return ended(work)


def arguments(given: Sequence[str]) -> list[str]:
    """The command line as Hydra takes it.

    Its flags stand before the overrides, wherever they were typed; `--help` needs a task to show.

    Raises:
        SpecError: a word that begins with no key there is, or a group set to null.
    """
    if any(word in COMPLETION for word in given):
        return list(given)
    words = [plain for word in overrides_of_folders(given) for plain in spelled_out(word)]
    check_names(words)
    check_choices(words)
    flags = [word for word in words if word in FLAGS]
    rest = [word for word in words if word not in FLAGS]
    asked = any(flag in ("-h", "--help") for flag in flags)
    shown = [] if any(word.startswith("task=") for word in rest) or not asked else ["task=math"]
    return [*flags, *rest, *shown]


def check_names(words: Sequence[str]) -> None:
    """Refuse a key that begins like none there is: Hydra may blame another one first.

    Groups of other folders (a search path, a config folder) are not known here: then nothing is.
    """
    for word in words:
        check_launcher_option(word)
    if any("searchpath" in word or word.partition("=")[0] in CONFIG_FLAGS for word in words):
        return
    known = [*_groups(), *KEYS]
    for word in words:
        name, equals, _ = word.lstrip("+~").partition("=")
        first = re.split(r"[@./]", name)[0]
        if equals and not word.startswith("-") and first not in known:
            raise SpecError(f"{word}: there is no {first}; {_meant_anywhere(name, known)}")


def check_launcher_option(word: str) -> None:
    """Refuse a cluster option that there is not, also one forced with `+`. Raises SpecError."""
    name = word.lstrip("+~").partition("=")[0]
    option = name.removeprefix(LAUNCHER).partition(".")[0]
    names = [field.name for field in fields(Cluster)]
    if name.startswith(LAUNCHER) and option not in names:
        raise SpecError(f"there is no {LAUNCHER}{option}; {_meant(option, names)}")


def check_choices(words: Iterable[str]) -> None:
    """Refuse a group set to null, which Hydra answers with a traceback."""
    for word in words:
        name, _, value = word.partition("=")
        if value == "null" and name in _groups():
            raise SpecError(_choice(name, value))
        if value == "null" and name in (*KEYS, "hydra.launcher"):
            raise SpecError(f"{name} must be left out, or keys of it set one by one, got null")


def _groups() -> list[str]:
    return [path.name for path in CONF.iterdir() if path.is_dir()]


def error_sentence(error: BaseException) -> str:
    """Why it was refused: the key, the rule, the value."""
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    if isinstance(cause, OmegaConfBaseException) and cause.full_key:
        return _of_key(cause)
    if isinstance(error, MissingConfigException) and "/" in (error.missing_cfg_file or ""):
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        return _choice(group, name, error.options)
    if isinstance(error, OverrideParseException):
        said = [line for line in str(error).splitlines()[:-1] if line.strip(" ^")]
        first = said[-1]
        key, equals, value = str(error.override).partition("=")
        if equals and value:
            return f"the value of {key} must be quoted: {quoted(key, value)} ({first})"
        return f"{error.override} must be key=value, such as task=math ({first})"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename} cannot be read or written: {error.strerror}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith("Ambiguous value for argument "):
        word = lines[0].removeprefix("Ambiguous value for argument ").strip("'")
        key, _, values = word.partition("=")
        several = f"{word} holds several values: add -m to run each"
        return (
            f"{several}, or write '{key}=[{values}]' for a list, {quoted(key, values)} for a text"
        )
    if lines and lines[0].startswith("You must specify '"):
        group = lines[0].split("'")[1]
        return f"{_choice(group, None)}; add {group}=NAME"
    return " ".join(lines) if isinstance(error, HydraException) else str(error)


def _of_key(error: OmegaConfBaseException) -> str:
    key, said = str(error.full_key), str(error).splitlines()[0]
    if isinstance(error, MissingMandatoryValue):
        return f"{key} must be given: add {key}=VALUE"
    if not isinstance(error, ConfigAttributeError | ConfigKeyError):
        return f"{key}: {said}"
    last, parent = key.rpartition(".")[2], error.parent_node
    if key.startswith("cue."):
        return f"{key} is not there; a cue of your own is added as '+cue={{{last}: {{text: ...}}}}'"
    if key in ELSEWHERE:
        return f"there is no {key}: {ELSEWHERE[key]}"
    names = [str(name) for name in parent] if isinstance(parent, DictConfig) else []
    return f"there is no {key}; {_meant(last, names)}"


def _meant(name: str, names: Sequence[str]) -> str:
    close = get_close_matches(name, names, 1)
    listed = ", ".join(sorted(names))
    return f"did you mean {close[0]}? ({listed})" if close else f"there are {listed}"


def quoted(key: str, value: str) -> str:
    """An override whose value is text, quoted for Hydra and then for the shell."""
    text = value.strip("'\"").replace("\\", "\\\\").replace('"', '\\"')
    return shlex.quote(f'{key}="{text}"')


def _meant_anywhere(name: str, known: Sequence[str]) -> str:
    """What a key that is no group may have meant: a group, or a key of some group."""
    anywhere = {
        field.name: f"{part}.{field.name}" for part, of in PARTS.items() for field in fields(of)
    }
    close = get_close_matches(name, [*known, *anywhere], 1)
    if close and close[0] in anywhere:
        return f"did you mean {anywhere[close[0]]}?"
    return _meant(re.split(r"[@./]", name)[0], known)


def filled(text: str) -> str:
    """An argument that names a file or folder, for argparse: an empty one is the working folder."""
    if not text:
        raise ArgumentTypeError("must name a file or a folder, got ''")
    return text


def named(text: str) -> Path:
    """As `filled`, as a path."""
    return Path(filled(text))


def refuse_flags(words: Iterable[str]) -> None:
    """Refuse a flag of Hydra where the words are settings of one run. Raises SpecError."""
    for word in words:
        if word.startswith("-"):
            rule = "be left out: a line here is settings alone, key=value"
            flag = word in ("-m", "--multirun")
            raise SpecError(f"{word} must {rule}{'; launch/run.py sweeps' if flag else ''}")


def _choice(group: str, name: str | None, options: Sequence[str] | None = None) -> str:
    known = options or sorted(path.stem for path in (CONF / group).glob("*.yaml"))
    got = "nothing" if name is None else repr(name)
    by_path = f"; a hub id, folder or GGUF file: model=local model.path={name}"
    hint = by_path if group == "model" and name not in (None, "", "null") else ""
    return f"{group} must be one of {', '.join(known)}, got {got}{hint}"
