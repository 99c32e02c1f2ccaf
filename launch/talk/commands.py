"""The commands of a chat: what each is for, what values it takes, and what it does."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from launch.config.compose import read_schema
from launch.talk.conversation import Answer, Conversation, exported
from launch.talk.session import prompt_of
from pipeline.protocols import Cue, Message, spelled
from pipeline.run.point import refuse_what_it_cannot
from pipeline.spec import Sampling, SpecError, require
from pipeline.store.files import StoreError, write_atomically

SETTINGS: dict[str, tuple[str, type[int] | type[float], str]] = {
    "/temp": ("temperature", float, "temperature; 0 takes the likeliest token"),
    "/top_k": ("top_k", int, "draw from the K likeliest tokens; 0 is off"),
    "/top_p": ("top_p", float, "draw from the likeliest tokens of this mass; 1 is off"),
    "/min_p": ("min_p", float, "drop tokens below this share of the likeliest; 0 is off"),
    "/max_tokens": ("max_new_tokens", int, "the most tokens of an answer"),
    "/penalty": ("repetition_penalty", float, "repetition penalty; 1 is off"),
}
OTHERS = {
    "/set": "KEY VALUE: any other key of sampling, such as /set typical_p 0.9",
    "/seed": "N: the seed that sampled text depends on",
    "/system": "TEXT: the system prompt; without a text it is taken away",
    "/cue": "[TEXT]: make the model reconsider its last answer, and show both",
    "/think": "on|off: think between tags before the answer",
    "/entropy": "on|off: show each answer again, with the entropy of its tokens",
    "/save": "FILE.yaml: the settings as a sampling option; FILE.json: the conversation; "
    "FILE.txt: the text, with mode=completion",
    "/load": "FILE: what /save wrote",
    "/retry": "another answer to the last turn",
    "/reset": "forget the conversation; settings stay",
    "/settings": "show the settings",
    "/help": "show the commands (or: help)",
    "/quit": "end (or: quit)",
}
NAMES = (*SETTINGS, *OTHERS)
# Of a run, which has phases and samples of its own.
NOT_OF_A_CHAT = ("num_samples", "think_cap", "answer_cap")
KEYS = tuple(one.name for one in fields(Sampling) if one.name not in NOT_OF_A_CHAT)
BARE = {"quit": "/quit", "help": "/help"}
READERS: dict[str, Callable[[str], Any]] = {
    ".yaml": yaml.safe_load,
    ".json": json.loads,
    ".txt": str,
}


class Quit(Exception):  # noqa: N818 - no error
    """The user ends the chat."""


@dataclass
class Commands:
    """Carries out lines that begin with a slash. What is wrong raises SpecError.

    `answer` shows an answer that work makes; `say` prints a line.
    """

    conversation: Conversation
    say: Callable[[str], None]
    retry: Callable[[], None]
    reconsider: Callable[[Cue], None]
    entropy: bool = False
    _doers: dict[str, Callable[[str], None]] = field(init=False)

    def __post_init__(self) -> None:
        """Bind each name to what it does."""
        self._doers = {
            "/set": self._set_key,
            "/seed": self._seed,
            "/system": self._system,
            "/cue": self._cue,
            "/think": lambda value: self.conversation.switch_thinking(_switch("/think", value)),
            "/entropy": self._entropy,
            "/save": self._save,
            "/load": self._load,
            "/retry": lambda _: self.retry(),
            "/reset": lambda _: self.conversation.reset(),
            "/settings": lambda _: self.say(self.settings()),
            "/help": lambda _: self.say(help_text()),
            "/quit": self._quit,
        }

    def is_command(self, line: str) -> bool:
        """Whether a line is for the chat and not for the model."""
        return line.startswith("/") or line.strip() in BARE

    def run(self, line: str) -> None:
        """Carry out one line. Raises Quit at the end, SpecError for what is wrong."""
        line = BARE.get(line.strip(), line)
        name, _, value = line.strip().partition(" ")
        require(name in NAMES, "a command", f"be one of {' '.join(NAMES)}", name)
        if name in SETTINGS:
            self._set(name, value.strip())
        else:
            self._doers[name](value.strip())

    def settings(self) -> str:
        """The present settings, one a line."""
        session, talk = self.conversation.session, self.conversation
        values = {name: getattr(session.sampling, key) for name, (key, _, _) in SETTINGS.items()}
        values["/max_tokens"] = session.cap
        off = Sampling(temperature=session.sampling.temperature)
        named = [key for key, _, _ in SETTINGS.values()]
        for key in (key for key in KEYS if key not in named):
            if (value := getattr(session.sampling, key)) != getattr(off, key):
                values[f"/set {key}"] = json.dumps(value)
        values |= {"/seed": session.seed, "/system": talk.system or "none"}
        values |= {"/think": _on(talk.think), "/entropy": _on(self.entropy)}
        return "\n".join(f"{name} {value}" for name, value in values.items())

    def _set(self, name: str, value: str) -> None:
        key, kind, _ = SETTINGS[name]
        self._change({key: _number(name, kind, value)})

    def _set_key(self, value: str) -> None:
        key, _, text = value.partition(" ")
        require(key in KEYS, "/set", f"name one of {', '.join(KEYS)}, and its value", key)
        self._change({key: _value_of(key, text.strip())})

    def _change(self, values: Mapping[str, Any]) -> None:
        self._take(replace(self.conversation.session.sampling, **values))

    def _take(self, sampling: Sampling) -> None:
        """Sample so from now on. Raises SpecError where the backend cannot."""
        session = self.conversation.session
        refuse_what_it_cannot(replace(session.spec, sampling=sampling), session.backend)
        session.sampling = sampling

    def _seed(self, value: str) -> None:
        self.conversation.session.seed = int(_number("/seed", int, value))

    def _system(self, value: str) -> None:
        completion = self.conversation.session.completion
        require(not completion, "/system", "have mode=chat: text is continued as it stands", value)
        self.conversation.system = value or None

    def _cue(self, value: str) -> None:
        self.reconsider(Cue("typed", value) if value else self.conversation.cue)

    def _entropy(self, value: str) -> None:
        on = _switch("/entropy", value)
        backend = self.conversation.session.backend
        rule = f"be off: backend {backend.name} gives no entropies"
        require(backend.capabilities.entropy or not on, "/entropy", rule, value)
        self.entropy = on

    def _save(self, value: str) -> None:
        path = self._file("/save", value)
        if path.suffix == ".txt":
            text = spelled(self.conversation.text)
        elif path.suffix == ".json":
            text = json.dumps(exported(self.conversation.messages), ensure_ascii=False, indent=1)
        else:
            of = asdict(self.conversation.session.sampling)
            text = yaml.safe_dump({k: v for k, v in of.items() if v is not None}, sort_keys=False)
        try:
            write_atomically(path, [text.encode()])
        except StoreError as error:
            raise SpecError(f"/save must name a file that can be written: {error}") from error
        self.say(f"saved {path}")

    def _load(self, value: str) -> None:
        path = self._file("/load", value)
        try:
            text = path.read_text(encoding="utf-8")
            record = READERS[path.suffix](text)
        except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
            raise SpecError(f"/load must name a file that /save wrote: {error}") from error
        if path.suffix == ".yaml":
            self._take(_sampling(record, path))
        elif path.suffix == ".json":
            messages = list(_messages(record, path))
            self.conversation.reset()
            self.conversation.messages = messages
        else:
            self.conversation.reset()
            self.conversation.text = (record,) if record else ()
        self.say(f"loaded {path}")

    def _file(self, name: str, value: str) -> Path:
        completion = self.conversation.session.completion
        said = ".txt file (the text)" if completion else ".json file (the conversation)"
        fits = Path(value).suffix in (".yaml", ".txt" if completion else ".json")
        require(fits, name, f"name a .yaml file (settings) or a {said}", value)
        return Path(value)

    def _quit(self, _: str) -> None:
        raise Quit


def help_text() -> str:
    """What each command does, one a line."""
    lines = [f"{name} VALUE: {meaning}" for name, (_, _, meaning) in SETTINGS.items()]
    return "\n".join([*lines, *(f"{name} {meaning}" for name, meaning in OTHERS.items())])


def cost_line(answer: Answer) -> str:
    """Tokens, seconds, and what a gateway says of usage and cost."""
    columns = [generation.backend_columns for generation in answer.generations]
    num_tokens = sum(generation.count for generation in answer.generations)
    seconds = sum(generation.seconds for generation in answer.generations)
    parts = [f"{num_tokens} tokens"]
    for name, of_what in (
        ("reasoning_tokens", "of them reasoning"),
        ("prompt_tokens", "in the prompt"),
    ):
        told = sum((column.get("usage") or {}).get(name) or 0 for column in columns)
        parts += [f"{told} {of_what}"] if told else []
    parts += [f"{seconds:.1f} s"] if seconds else []
    costs = [column["cost_usd"] for column in columns if column.get("cost_usd") is not None]
    parts += [f"{sum(costs):.6f} USD"] if costs else []
    parts += ["stopped"] if answer.interrupted else []
    cut = not answer.interrupted and answer.generations[-1].truncated
    return ", ".join(parts + (["cut at the most tokens: /max_tokens"] if cut else []))


def _messages(record: object, path: Path) -> Sequence[Message]:
    listed = isinstance(record, list) and all(isinstance(one, dict) for one in record)
    require(listed, "/load", "name a list of messages", str(path))
    assert isinstance(record, list)
    return prompt_of(record).messages if record else ()


def _sampling(record: object, path: Path) -> Sampling:
    require(isinstance(record, dict), "/load", "name a sampling YAML", str(path))
    assert isinstance(record, dict)
    known = set(asdict(Sampling()))
    unknown = sorted(str(key) for key in record if key not in known)
    require(not unknown, "/load", f"name keys of sampling only ({path})", unknown)
    try:
        return Sampling(**record)
    except TypeError as error:
        raise SpecError(f"/load {path}: {error}") from error


def _switch(name: str, value: str) -> bool:
    require(value in ("on", "off"), name, "be on or off", value)
    return value == "on"


def _on(value: bool) -> str:
    return "on" if value else "off"


def _number(name: str, kind: type[int] | type[float], text: str) -> int | float:
    try:
        return kind(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise SpecError(f"{name} must be {wanted}, got {text!r}") from None


def _value_of(key: str, text: str) -> Any:
    """The value of a key of sampling as it is typed: a number, else YAML; a regex as it stands."""
    kind = type(getattr(Sampling(), key))
    if kind in (int, float):
        return _number(f"/set {key}", kind, text)
    if key == "regex":
        return None if text == "null" else text
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SpecError(f"/set {key} must be YAML: {error}") from error
    return read_schema(value) if key == "json_schema" else value
