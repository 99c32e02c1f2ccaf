"""The records that pass between tasks, the trace and backends, and the two protocols."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from pipeline.spec import Sampling

FinishReason = Literal["stop_token", "eos", "max_new_tokens", "other"]
FILTERS = ("top_p", "top_k", "min_p", "repetition_penalty")


class BackendLostError(RuntimeError):
    """A backend cannot go on (refused key, refused setting): the run ends, what is whole stays."""


@dataclass(frozen=True, slots=True)
class Example:
    """One question.

    `id` is the data set's own, else a content hash. `metadata` becomes columns of the row.
    """

    id: str
    question: str
    target: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Phase:
    """A piece of the assistant turn.

    Forced `opening`, generated text up to a `stop` string or `cap` tokens, forced `closing`.
    """

    name: str
    cap: int
    opening: str = ""
    stop: tuple[str, ...] = ()
    closing: str = ""


@dataclass(frozen=True, slots=True)
class Cue:
    """A reconsideration cue. A control cue is neutral and does not count as a reconsideration."""

    name: str
    text: str
    control: bool = False


@dataclass(slots=True)
class Generation:
    """What a backend made for one request.

    `token_ids` are the generated ids as they came: through the token that completes a stop string,
    or through the end-of-sequence token. `text` is their text up to the stop string; `tail` is what
    the kept ids spell from the stop string on (empty unless finish_reason is `stop_token`).
    `entropies` (nats, full vocabulary) and `logprobs` hold one number per id, or are None where the
    backend cannot tell or was not asked. `ends[i]` is the length of the text (tail included) after
    id i. `prompt_cut` counts prompt tokens lost to `model.max_length`. A backend that sees no ids
    leaves `token_ids` empty, sets `num_tokens`, and gives one logprob per generated token.
    `backend_columns` are the backend's own columns of the row; pipeline/run/backend_columns.py says
    how those of several phases join.
    """

    token_ids: list[int]
    text: str
    finish_reason: FinishReason
    tail: str = ""
    prompt_tokens: int = 0
    prompt_ids: list[int] | None = None
    entropies: list[float] | None = None
    logprobs: list[float] | None = None
    ends: list[int] | None = None
    seconds: float = 0.0
    prompt_cut: int = 0
    num_tokens: int | None = None
    backend_columns: dict[str, Any] = field(default_factory=dict)

    @property
    def spelled(self) -> str:
        """All the text that the generated ids spell: `text`, then `tail`."""
        return self.text + self.tail

    @property
    def count(self) -> int:
        """Generated tokens; 0 where neither ids nor a count are known."""
        return self.num_tokens if self.num_tokens is not None else len(self.token_ids)


Piece = str | Generation


@dataclass(frozen=True, slots=True)
class Message:
    """A chat message. Its content is text and earlier generations, in order."""

    role: str
    content: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Prompt:
    """Chat messages, and a prefill that opens the assistant turn to be generated.

    A backend that continues from ids keeps a Generation's ids (a trailing end-of-sequence id
    dropped) and encodes text; others see what a Generation `spelled`.
    """

    messages: tuple[Message, ...]
    prefill: tuple[Piece, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """Requests that are samples of one prompt: `index` of `size`."""

    id: str
    index: int
    size: int


@dataclass(frozen=True, slots=True)
class Request:
    """One generation to make.

    `seed` is 64 bits; `trace_id` names the trace and orders it (lower came first). `on_token(text)`
    receives text as it becomes certain. `entropy` False: entropies and logprobs may be left out.
    """

    prompt: Prompt
    stop: tuple[str, ...]
    cap: int
    sampling: Sampling
    seed: int
    trace_id: int
    group: Group
    entropy: bool = True
    on_token: Callable[[str], None] | None = None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do."""

    continues_ids: bool = False
    assistant_prefill: bool = False
    entropy: bool = False  # exact, over the full vocabulary
    logprobs: bool = False
    beams: bool = False
    many_per_request: bool = False
    streaming: bool = False
    filters: tuple[str, ...] = FILTERS  # of Sampling, those it honours; others must be off


class Task(Protocol):
    """What is asked, and how an answer is judged."""

    name: str
    phases: tuple[Phase, ...]
    max_output_tokens: int  # cap when a tagged task runs as a single phase

    def examples(self) -> Sequence[Example]:
        """All examples, in the data set's order, ids unique."""

    def prompt(self, example: Example) -> Prompt:
        """The messages of pass 1; a tagged phase's opening is not part of it."""

    def score(self, example: Example, generations: Mapping[str, Generation]) -> dict[str, Any]:
        """Judge one pass. `generations` by phase name (`think`, `answer`; or `output`).

        Returns pass fields, `pred_answer`, `pred_answer_canon` and `is_correct_pred` among them
        (None where there is no gold). Called off the event loop, from a thread.
        """


Param = str | int | float | bool | None


class Tracker(Protocol):
    """Where parameters, metrics and files of a run are kept beside its folder.

    Construction is cheap and refuses a missing library. The other methods may fail or hang as they
    like: they are called from a thread of their own, in order.
    """

    report: bool  # whether the HTML report is wanted

    def start(self, name: str, params: Mapping[str, Param], tags: Mapping[str, str]) -> None:
        """A point begins."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Metrics; `step` is the training step of the model."""

    def attach(self, path: Path) -> None:
        """A file, which is gone after `finish`."""

    def finish(self, status: str) -> None:
        """The point ended: `complete`, `shared`, `failed` or `interrupted`."""


class Backend(Protocol):
    """Who answers. Construction is cheap; entering loads the model."""

    name: str
    capabilities: Capabilities
    capacity: int  # traces it wants open at once

    def identity(self) -> dict[str, Any]:
        """What of model and backend makes a row what it is; known before entering.

        Values are JSON.
        """

    def describe(self) -> dict[str, Any]:
        """Device, dtype, batch size, versions and counters so far, for the attempt record."""

    def preview(self, prompt: Prompt) -> str:
        """The prompt as the model will see it, special tokens included.

        Loads a tokenizer at most.
        """

    async def __aenter__(self) -> Self:
        """Load."""

    async def __aexit__(self, *exc: object) -> None:
        """Unload."""

    async def generate(self, request: Request) -> Generation:
        """Make one generation. Cancelling the call drops the request."""

    def release(self, trace_id: int) -> None:
        """The trace is over: its cached state may go."""

    async def follow(self) -> None:
        """What ranks above 0 do instead of running traces; returns when rank 0 is done."""
