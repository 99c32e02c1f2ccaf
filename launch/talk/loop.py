"""Lines in, answers out: from a terminal with editing and history, or from a pipe."""

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from launch.talk.commands import KEYS, NAMES, Commands, Quit
from launch.talk.conversation import Answer, Conversation
from launch.talk.screen import Screen
from launch.talk.session import Session, TalkSpec, is_whole
from pipeline.protocols import Backend, Cue, Message, Prompt, RequestFailedError
from pipeline.spec import SpecError, require

NOTHING = (
    "there is nothing to answer: start it in a terminal, or pipe lines into it "
    "(echo Hello | python launch/chat.py model=smollm2)"
)
_QUESTION = "Question"


def talk(spec: TalkSpec, backend: Backend) -> int:
    """Talk until the input ends or the user quits. Returns the exit status."""
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    lines = typed_lines() if terminal else piped_lines()
    first = None if terminal else next(lines, None)
    if not terminal and first is None:
        print(NOTHING, file=sys.stderr)
        return 1
    screen, cue = Screen(Console(highlight=False, emoji=False)), _cue(spec)
    with Session(spec, backend) as session:
        session.completion = completes(spec, backend)
        screen.say(banner(spec, session))
        conversation = Conversation(session, cue, spec.task.get("system_prompt"))
        _converse(Chat(conversation, screen), lines, first)
    return 0


class Chat:
    """Hands each line to the model or to the commands, and shows what comes of it."""

    def __init__(self, conversation: Conversation, screen: Screen) -> None:
        self._conversation = conversation
        self._screen = screen
        self._commands = Commands(conversation, screen.say, self._retry, self._reconsider)

    def line(self, line: str) -> None:
        """Carry out one line; what is wrong with it is said. Raises Quit at the end."""
        try:
            with unechoed():
                self._carry_out(line)
        except KeyboardInterrupt:
            self._screen.say("[stopped]", "dim")
        except (SpecError, RequestFailedError) as error:
            self._screen.say(f"error: {error}", "red")

    def _carry_out(self, line: str) -> None:
        rule = "be UTF-8 text: convert it, such as with iconv"
        require(is_whole(line), "a line", rule, line)
        if self._commands.is_command(line):
            self._commands.run(line)
        elif line.strip():
            self._ended(self._conversation.ask(line, self._screen.piece))

    def _ended(self, answer: Answer) -> None:
        self._screen.ending(answer, self._commands.entropy)

    def _retry(self) -> None:
        self._ended(self._conversation.retry(self._screen.piece))

    def _reconsider(self, cue: Cue) -> None:
        self._screen.say(f"[cue: {cue.text}]", "dim")
        before, after = self._conversation.reconsider(cue, self._screen.piece)
        self._ended(after)
        self._screen.both(before, after)


def _converse(chat: Chat, lines: Iterator[str], first: str | None) -> None:
    try:
        if first is not None:
            chat.line(first)
        for line in lines:
            chat.line(line)
    except Quit:
        return


@contextmanager
def unechoed() -> Iterator[None]:
    """What is typed meanwhile is not mixed into the answer; the next prompt shows it."""
    if not sys.stdin.isatty() or sys.platform == "win32":
        yield
        return
    import termios

    before = termios.tcgetattr(sys.stdin)
    silent = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def piped_lines() -> Iterator[str]:
    """Lines of standard input that are not blank; bytes that are no text become half characters."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    for line in sys.stdin:
        if line.strip():
            yield line.rstrip("\n")


def typed_lines() -> Iterator[str]:
    """Lines typed with editing, history and completion; Ctrl-C empties the line, Ctrl-D ends."""
    read = _reader()
    while True:
        try:
            yield read()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return


def _reader() -> Callable[[], str]:
    try:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.history import FileHistory
    except ImportError as error:
        rule = "pip install 'rethink-pipeline[chat]', or pipe lines into it"
        raise SpecError(f"a chat in a terminal needs prompt_toolkit: {rule}") from error
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "rethink"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    completer = WordCompleter([*NAMES, *(f"/set {key}" for key in KEYS)], sentence=True)
    history = FileHistory(str(folder / "chat_history"))
    prompts: Any = PromptSession("> ", completer=completer, history=history)
    return lambda: str(prompts.prompt())


def completes(spec: TalkSpec, backend: Backend) -> bool:
    """Whether text is continued as it stands. Raises SpecError where the backend cannot."""
    if spec.mode == "auto":
        shown = backend.preview(Prompt((Message("user", (_QUESTION,)),)))
        return shown.rstrip().endswith(_QUESTION) and backend.capabilities.continues_ids
    able = backend.capabilities.continues_ids or spec.mode == "chat"
    rule = f"be chat with backend {backend.name}, which does not continue ids"
    require(able, "mode", rule, spec.mode)
    return spec.mode == "completion"


def banner(spec: TalkSpec, session: Session) -> str:
    """Name, size and mode of what answers."""
    backend = session.backend
    weights = backend.describe().get("weights") or {}
    size = weights.get("parameters")
    name = spec.model.name if backend.capabilities.runs_model else f"backend {backend.name}"
    parts = [name] + ([f"{size:,} parameters"] if size else ["number of parameters unknown"])
    mode = "completion: your text is continued" if session.completion else "chat"
    return f"{', '.join(parts)}, {mode}. /help shows the commands, Ctrl-C stops an answer."


def _cue(spec: TalkSpec) -> Cue:
    """The first cue of the group, for /cue without a text."""
    require(len(spec.cue) > 0, "cue", "name a cue for /cue, such as cue=wait", "none")
    name, cue = next(iter(spec.cue.items()))
    return Cue(name, cue.text, cue.control)
