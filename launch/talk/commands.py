"""The commands of a chat: what each is for, what values it takes, and what it does."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from launch.talk.conversation import Answer, Conversation, exported
from launch.talk.session import prompt_of
from pipeline.protocols import FILTERS, Cue, Message
from pipeline.spec import Sampling, SpecError, require

SETTINGS: dict[str, tuple[str, type[int] | type[float], str]] = {
    "/temp": ("temperature", float, "temperature; 0 takes the likeliest token"),
    "/top_k": ("top_k", int, "draw from the K likeliest tokens; 0 is off"),
    "/top_p": ("top_p", float, "draw from the likeliest tokens of this mass; 1 is off"),
    "/min_p": ("min_p", float, "drop tokens below this share of the likeliest; 0 is off"),
    "/max_tokens": ("max_new_tokens", int, "the most tokens of an answer"),
    "/penalty": ("repetition_penalty", float, "repetition penalty; 1 is off"),
}
OTHERS = {
    "/seed": "N: the seed that sampled text depends on",
    "/system": "TEXT: the system prompt; without a text it is taken away",
    "/cue": "[TEXT]: make the model reconsider its last answer, and show both",
    "/think": "on|off: think between tags before the answer",
    "/entropy": "on|off: show each answer again, shaded by the entropy of its tokens",
    "/save": "FILE.yaml: the settings as a sampling option; FILE.json: the conversation",
    "/load": "FILE.yaml or FILE.json: what /save wrote",
    "/retry": "another answer to the last turn",
    "/reset": "forget the conversation; settings stay",
    "/settings": "show the settings",
    "/help": "show the commands (or: help)",
    "/quit": "end (or: quit)",
}
NAMES = (*SETTINGS, *OTHERS)
BARE = {"quit": "/quit", "help": "/help"}


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
        values |= {"/seed": session.seed, "/system": talk.system or "none"}
        values |= {"/think": _on(talk.think), "/entropy": _on(self.entropy)}
        return "\n".join(f"{name} {value}" for name, value in values.items())

    def _set(self, name: str, value: str) -> None:
        key, kind, _ = SETTINGS[name]
        session = self.conversation.session
        filters = session.backend.capabilities.filters
        rule = f"be left as it is: backend {session.backend.name} does not honour it"
        require(key not in FILTERS or key in filters, name, rule, value)
        try:
            number = kind(value)
        except ValueError:
            wanted = "a whole number" if kind is int else "a number"
            raise SpecError(f"{name} must be {wanted}, got {value!r}") from None
        changed: dict[str, Any] = {key: number}
        session.sampling = replace(session.sampling, **changed)

    def _seed(self, value: str) -> None:
        require(value.lstrip("-").isdecimal(), "/seed", "be a whole number", value)
        self.conversation.session.seed = int(value)

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
        path = _named("/save", value)
        if path.suffix == ".json":
            text = json.dumps(exported(self.conversation.messages), ensure_ascii=False, indent=1)
        else:
            of = asdict(self.conversation.session.sampling)
            text = yaml.safe_dump({k: v for k, v in of.items() if v is not None}, sort_keys=False)
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise SpecError(f"/save must name a file that can be written: {error}") from error
        self.say(f"saved {path}")

    def _load(self, value: str) -> None:
        path = _named("/load", value)
        try:
            text = path.read_text(encoding="utf-8")
            record = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise SpecError(f"/load must name a file that /save wrote: {error}") from error
        if path.suffix == ".json":
            self.conversation.reset()
            self.conversation.messages = list(_messages(record, path))
        else:
            self.conversation.session.sampling = _sampling(record, path)
        self.say(f"loaded {path}")

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
    parts = [f"{num_tokens} tokens"] + ([f"{seconds:.1f} s"] if seconds else [])
    prompt = sum((column.get("usage") or {}).get("prompt_tokens") or 0 for column in columns)
    parts += [f"{prompt} prompt tokens"] if prompt else []
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


def _named(name: str, value: str) -> Path:
    fits = Path(value).suffix in (".yaml", ".json")
    require(fits, name, "name a .yaml file (settings) or a .json file (conversation)", value)
    return Path(value)
