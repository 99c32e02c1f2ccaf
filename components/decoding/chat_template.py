"""A `Prompt` through a chat template, with what was generated kept apart from text.

A template is a program that may trim, reorder or drop what it is given. An assistant turn may be
ids, not text, so the template is shown a placeholder in its stead and the turn is put back into
what it wrote.
"""

import datetime
import logging
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase

from pipeline.protocols import Generation, Message, Piece, Prompt, spelled
from pipeline.spec import SpecError

_LOG = logging.getLogger(__name__)
_RENDERED = 4096  # conversations whose text is remembered
_CLOCK = "strftime_now"
_BETWEEN = "\n\n"  # joins messages where there is no chat template
_QUESTION = "QuestionOfRethink"
_TAG = re.compile(r"\s*<([^\s<>/]+)>")
# A template may ask the clock for a date; it gets this day, which Llama's templates fall back to.
_DAY = datetime.datetime(2024, 7, 26)
_DATE_CODES = ("%-d", "%-m", *(f"%{letter}" for letter in "dbBYmyaAHIMSpj"))

Turn = dict[str, str]


class TurnLostError(ValueError):
    """The template leaves out or repeats a turn that it was given."""


class ChatTemplate:
    """Writes prompts as runs of text and generations, with a tokenizer's template or none."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, arguments: dict[str, Any]) -> None:
        """`arguments` are the template's own (`model.template_kwargs`)."""
        self._tokenizer = tokenizer
        self._arguments = arguments
        self._text = tokenizer.get_chat_template() if tokenizer.chat_template else None
        self._folds = False  # the template takes no system role
        self._warned: set[str] = set()
        # Samples of a prompt differ in what was generated, which the template does not see.
        self._known = lru_cache(_RENDERED)(self._written)
        if self._text and _CLOCK in self._text:
            self._text = _stopped_clock() + self._text
            if not arguments:
                self._warn(
                    f"the chat template reads the clock and is told {_DAY:%d %B %Y}, so that rows "
                    "do not depend on the day: give it a date in model.template_kwargs"
                )

    def runs(self, prompt: Prompt) -> list[Piece]:
        """The prompt in order: text, generations, and never two texts in a row.

        A tag such as `<think>` that the template opens by itself is not opened again by the text
        that follows it. A prompt without messages is text to be continued, and no template is used.

        Raises:
            SpecError: the template refuses the messages or loses a turn.
        """
        if self._text is None or not prompt.messages:
            pieces = (piece for turn in prompt.messages for piece in (*turn.content, _BETWEEN))
            return list(_merged([*pieces, *prompt.prefill]))
        return list(_merged(self._templated(prompt)))

    def after_question(self, prompt: Prompt) -> list[Piece]:
        """The runs after the last user turn's text: what the template ends with, and the prefill.

        `runs` has accepted the prompt before.
        """
        if not prompt.messages:
            return list(_merged(prompt.prefill))
        if self._text is None:
            return list(_merged([_BETWEEN, *prompt.prefill]))
        messages = _folded(prompt.messages) if self._folds else list(prompt.messages)
        turns = [_shown(number, message) for number, message in enumerate(messages)]
        last = max((n for n, each in enumerate(messages) if each.role == "user"), default=None)
        if last is None:
            return list(_merged(prompt.prefill))
        turns[last]["content"] = _QUESTION
        rest = self._render(turns).rpartition(_QUESTION)[2]
        pieces: list[Piece] = []
        for number in range(last + 1, len(messages)):
            if messages[number].role == "assistant":
                before, _, rest = rest.partition(turns[number]["content"])
                pieces += [before, *messages[number].content]
        return list(_merged([*pieces, *_opened_once(rest, prompt.prefill)]))

    def turn_end(self) -> str:
        """What the template writes after an assistant turn; empty without a template."""
        if self._text is None:
            return ""
        said = f"{_QUESTION}Answered"
        try:
            text = self._render([{"role": "user", "content": "x"}, _assistant(said)])
        except TemplateError:
            return ""
        return text.rpartition(said)[2]

    def _templated(self, prompt: Prompt) -> list[Piece]:
        try:
            return self._filled(prompt.messages, prompt.prefill)
        except (TemplateError, TurnLostError) as error:
            if not any(message.role == "system" for message in prompt.messages):
                raise _refused(error) from error
            reason = str(error)
        self._warn(f"the chat template takes no system role ({reason}): it joins the user turn")
        try:
            pieces = self._filled(_folded(prompt.messages), prompt.prefill)
        except (TemplateError, TurnLostError) as error:
            raise _refused(error) from error
        self._folds = True
        return pieces

    def _filled(self, messages: Sequence[Message], prefill: Sequence[Piece]) -> list[Piece]:
        """The template's text, with every assistant turn in place of its placeholder."""
        turns = [_shown(number, message) for number, message in enumerate(messages)]
        rest = self._render(turns)
        for turn in turns:
            if turn["role"] == "system" and turn["content"].strip() not in rest:
                raise TurnLostError("its text does not appear")
        pieces: list[Piece] = []
        written = ""
        for number, message in enumerate(messages):
            if message.role != "assistant":
                continue
            before, placeholder, rest = rest.partition(turns[number]["content"])
            if not placeholder or turns[number]["content"] in rest:
                raise TurnLostError("an assistant turn does not appear exactly once")
            # The generation prompt stands before turns that the model made, not before examples.
            opened = self._render(turns[:number]) if _generated(message) else ""
            if opened.startswith(written + before):
                before = opened.removeprefix(written)
            written += before + placeholder
            pieces += _opened_once(before, message.content)
        return pieces + _opened_once(rest, prefill)

    def _render(self, turns: Sequence[Turn]) -> str:
        return self._known(tuple((turn["role"], turn["content"]) for turn in turns))

    def _written(self, turns: tuple[tuple[str, str], ...]) -> str:
        text = self._tokenizer.apply_chat_template(
            [{"role": role, "content": content} for role, content in turns],
            chat_template=self._text,
            tokenize=False,
            add_generation_prompt=True,
            **self._arguments,
        )
        assert isinstance(text, str)
        return text

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            _LOG.warning(message)


def _generated(message: Message) -> bool:
    """Whether the model made this turn, or part of it."""
    return any(isinstance(piece, Generation) for piece in message.content)


def _shown(number: int, message: Message) -> Turn:
    """What the template sees of a message: a user's text as it is, an assistant turn not at all."""
    if message.role == "assistant":
        return _assistant(f"AssistantTurn{number:04d}OfRethink")
    return {"role": message.role, "content": spelled(message.content)}


def _assistant(content: str) -> Turn:
    return {"role": "assistant", "content": content}


def _folded(messages: Sequence[Message]) -> list[Message]:
    """The messages with the system text at the start of the first user turn."""
    system = [piece for m in messages if m.role == "system" for piece in (*m.content, _BETWEEN)]
    rest = [message for message in messages if message.role != "system"]
    first = next((n for n, message in enumerate(rest) if message.role == "user"), None)
    if first is None:
        return [Message("user", tuple(system[:-1])), *rest]
    rest[first] = Message("user", (*system, *rest[first].content))
    return rest


def _opened_once(before: str, content: Sequence[Piece]) -> list[Piece]:
    """Template text and what follows it, where both may open the same tag.

    The template's opening goes, with an empty block that it closes at once.
    """
    first = content[0] if content else ""
    tag = _TAG.match(first) if isinstance(first, str) else None
    if tag:
        name = re.escape(tag[1])
        before = re.sub(rf"<{name}>\s*(</{name}>\s*)?\Z", "", before)
    return [before, *content]


def _merged(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Neighbouring texts joined, empty ones dropped. A generation without ids is text."""
    text = ""
    for piece in pieces:
        if isinstance(piece, str):
            text += piece
        elif not piece.token_ids:
            text += piece.spelled
        else:
            if text:
                yield text
            yield piece
            text = ""
    if text:
        yield text


def _stopped_clock() -> str:
    """Jinja that puts a function of a fixed day in the clock's place and writes nothing."""
    steps = "".join(f"|replace('{code}', '{_DAY.strftime(code)}')" for code in _DATE_CODES)
    return f"{{% macro {_CLOCK}(form) %}}{{{{ form{steps} }}}}{{% endmacro %}}{{{{ '' }}}}"


def _refused(error: Exception) -> SpecError:
    return SpecError(f"model.chat_template (or the tokenizer's own) refuses the messages: {error}")
