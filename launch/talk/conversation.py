"""A conversation with a model: its turns, and the answers that settings and cues give."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from components.grading.answers import THINK
from components.tasks import tag_phases
from launch.talk.reasoning import Parted, Show
from launch.talk.session import PHASE, Session, Stream
from pipeline.protocols import Cue, Generation, Message, Phase, Piece, Prompt, spelled
from pipeline.run.pass_fields import cue_prefix
from pipeline.run.phases import assistant_turn, sampling_of
from pipeline.run.trace import continuing, reconsidering
from pipeline.spec import require

THINKING_SHARE = 0.75  # of an answer's tokens, where thinking and answer have phases of their own


@dataclass(frozen=True, slots=True)
class Answer:
    """What was asked and what came: one generation per phase; `cue` opened it, if any."""

    prompt: Prompt
    phases: tuple[Phase, ...]
    generations: tuple[Generation, ...]
    cue: Cue | None = None
    interrupted: bool = False

    @property
    def begun(self) -> tuple[Phase, ...]:
        """The phases that have a generation; the first one opens with the cue."""
        first, *others = self.phases[: len(self.generations)]
        return (replace(first, opening=first.opening + cue_prefix(self.cue)), *others)

    @property
    def turn(self) -> tuple[Piece, ...]:
        """The assistant's turn, generations with their ids."""
        return assistant_turn(self.begun, self.generations)

    @property
    def text(self) -> str:
        """The turn as text."""
        return spelled(self.turn)


@dataclass
class Conversation:
    """Turns until `reset`, on one session."""

    session: Session
    cue: Cue
    system: str | None = None
    think: bool = False
    messages: list[Message] = field(default_factory=list)
    text: tuple[Piece, ...] = ()  # where the mode is completion: all that was written so far
    last: Answer | None = None
    _sample: int = 0

    def phases(self) -> tuple[Phase, ...]:
        """One phase, or a thinking one and an answer."""
        cap = self.session.cap
        if not self.think:
            return (Phase(PHASE, cap),)
        thinking = max(1, int(cap * THINKING_SHARE))
        return tag_phases.phases(True, thinking, max(1, cap - thinking), cap)

    def switch_thinking(self, on: bool) -> None:
        """Think between forced tags before an answer. Raises SpecError where that cannot be."""
        able = self.session.backend.capabilities.assistant_prefill and not self.session.completion
        rule = "be off: it needs mode=chat and a backend that continues an assistant turn"
        require(able or not on, "/think", rule, "on")
        self.think = on

    def ask(self, text: str, show: Show) -> Answer:
        """The answer to the next user turn; where the mode is completion, what follows the text."""
        require(bool(text.strip()), "the prompt", "not be empty", text)
        self._sample = 0
        if self.session.completion:
            return self._keep(self._answer(Prompt((), (*self.text, text)), None, show))
        return self._keep(self._answer(self._prompt(Message("user", (text,))), None, show))

    def retry(self, show: Show) -> Answer:
        """Another answer to the last turn, which it replaces."""
        last = self._last("/retry")
        self._sample += 1
        return self._keep(self._answer(last.prompt, last.cue, show))

    def reconsider(self, cue: Cue, show: Show) -> tuple[Answer, Answer]:
        """The last answer, and the one that the model gives under a cue, as in a run's pass 2."""
        before = self._last("/cue")
        rule = "have a chat: with mode=completion there are no turns to reconsider"
        require(not self.session.completion, "/cue", rule, cue.text)
        self._sample = 0
        prompt = reconsidering(before.begun, before.prompt, before.generations, cue)
        return before, self._keep(self._answer(prompt, cue, show))

    def reset(self) -> None:
        """Forget the turns; settings stay."""
        self.messages, self.text, self.last = [], (), None

    def _prompt(self, turn: Message) -> Prompt:
        head = (Message("system", (self.system.strip(),)),) if self.system else ()
        return Prompt((*head, *self.messages, turn))

    def _last(self, command: str) -> Answer:
        require(self.last is not None, command, "follow an answer", "none yet")
        assert self.last is not None
        return self.last

    def _keep(self, answer: Answer) -> Answer:
        self.last = answer
        turn = tuple(_kept(piece) for piece in answer.turn)
        if self.session.completion:
            self.text = (*answer.prompt.prefill, *turn)
        else:
            turns = [each for each in answer.prompt.messages if each.role != "system"]
            self.messages = [*turns, Message("assistant", turn)]
        return answer

    def _answer(self, prompt: Prompt, cue: Cue | None, show: Show) -> Answer:
        phases, prefills = self.phases(), self.session.backend.capabilities.assistant_prefill
        generations: list[Generation] = []
        for phase in phases:
            asked = prompt
            if not self.session.completion:
                asked = continuing(phases, prompt, generations, cue, prefills)
            sampling = sampling_of(phase, phases, self.session.sampling)
            stream = self.session.stream_prompt(asked, self._sample, phase, sampling)
            before = self.session.backend.preview(asked)
            generation, whole = _shown(stream, before, phase.name, show)
            generations.append(generation)
            if not whole:
                return Answer(prompt, phases, tuple(generations), cue, interrupted=True)
        return Answer(prompt, phases, tuple(generations), cue)


def _kept(piece: Piece) -> Piece:
    """A piece without the ids of its prompt: every turn would keep all those before it."""
    return piece if isinstance(piece, str) else replace(piece, prompt_ids=None)


def _shown(stream: Stream, before: str, phase: str, show: Show) -> tuple[Generation, bool]:
    """The generation of a stream that is shown, or its text so far when Ctrl-C stops it.

    Reasoning is shown as a phase of its own; `before` is the prompt, which may have opened it.
    """
    texts: list[str] = []
    parted = Parted(show, before)
    try:
        for part in stream.parts():
            texts += [] if part.reasoning else [part.text]
            parted.take(part.text, THINK if part.reasoning else phase)
        parted.end()
        return stream.generation, True
    except KeyboardInterrupt:
        stream.close()
        return Generation([], "".join(texts), "other", num_tokens=len(texts)), False


def exported(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Messages as dictionaries of role and content."""
    return [{"role": m.role, "content": spelled(m.content)} for m in messages]
