"""The records that pass between tasks, the trace and backends, and the protocols of components."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, Self, runtime_checkable

from pipeline.spec import Sampling, SpecError

# `max_new_tokens` is the request's cap; `max_context` the model's positions or any other limit on
# length that is not the cap; `other` whatever a service calls by another name.
FinishReason = Literal["stop_token", "eos", "max_new_tokens", "max_context", "other"]
TRUNCATED = ("max_new_tokens", "max_context")  # the model had not ended
# What a backend honours of Sampling unless it says otherwise, and what only if it says so.
FILTERS = ("top_p", "top_k", "min_p", "repetition_penalty")
STRATEGIES = (
    "typical_p",
    "presence_penalty",
    "frequency_penalty",
    "no_repeat_ngram_size",
    "min_new_tokens",
    "logit_bias",
    "num_beams",
    "length_penalty",
    "early_stopping",
    "regex",
    "json_schema",
)


class BackendLostError(RuntimeError):
    """A backend cannot go on (refused key, refused setting): the run ends, finished rows stay."""


class StoppedError(RuntimeError):
    """The run is ending, and a request was not sent (again): its trace ends unfinished."""


class RequestFailedError(RuntimeError):
    """One request failed for good; others may succeed."""


class PromptTooLongError(SpecError):
    """A prompt is longer than the model reads; requests with shorter prompts can be made."""


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

    It is forced text (`opening`), generated text up to a `stop` string or `cap` tokens, and forced
    text again (`closing`). A tagged task has the phases `think` and `answer`; a task of one phase
    calls it `output`. Columns of rows and the caps of `sampling` go by these names.
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
    leaves `token_ids` empty, sets `num_tokens`, and gives one logprob per generated token. `error`
    says why a generation could not be made, which is then empty. `backend_columns` are the
    backend's own columns of the row; pipeline/run/backend_columns.py says how those of several
    phases join.
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
    error: str | None = None
    backend_columns: dict[str, Any] = field(default_factory=dict)

    @property
    def truncated(self) -> bool:
        """Whether a limit on length ended the text, not the model."""
        return self.finish_reason in TRUNCATED

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
class ForcedTokens:
    """Given ids after a given prompt, to be scored as if the model had generated them.

    `Backend.force` also says what the ids spell, where each ends in that (as `Generation.ends`),
    and whether they were `encoded` from text, so that the model may have drawn others.
    """

    prompt_ids: Sequence[int]
    token_ids: Sequence[int]
    text: str = ""
    ends: Sequence[int] | None = None
    encoded: bool = False


@dataclass(frozen=True, slots=True)
class TokenScores:
    """What `Generation` says of tokens, for given ones: one number per id."""

    entropies: list[float]
    logprobs: list[float]


def spelled(pieces: Iterable[Piece]) -> str:
    """The text of pieces, one after another."""
    return "".join(piece if isinstance(piece, str) else piece.spelled for piece in pieces)


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


class Spending(Protocol):
    """Where a paid backend says what a request costs beside its answer, while it is under way."""

    def discarded(self, usd: float) -> None:
        """USD of an answer that was paid, or may have been, and cannot be used."""

    async def renew(self) -> None:
        """Wait until the budget covers another attempt; raises where it never will."""


@dataclass(frozen=True, slots=True)
class Request:
    """One generation to make.

    `seed` is 64 bits; `trace_id` names the trace and orders it (lower came first). `on_token(text)`
    receives text as it becomes certain; `on_reasoning(text)` what a service sends apart from it, as
    it comes. `entropy` False: entropies and logprobs may be left out. `spending` is there where a
    budget limits the run.
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
    on_reasoning: Callable[[str], None] | None = None
    spending: Spending | None = None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do; a run is refused, before anything loads, if it needs more."""

    continues_ids: bool = False  # keeps the ids of a Generation in a prompt
    assistant_prefill: bool = False  # goes on with an assistant turn that the prompt opens
    entropy: bool = False  # exact, over the full vocabulary
    logprobs: bool = False
    many_per_request: bool = False
    scores: bool = False  # `force` and `score`: exact numbers of ids that are given
    streaming: bool = False  # `on_token` hears text while the rest is still being generated
    filters: tuple[str, ...] = FILTERS  # and of STRATEGIES, those it honours; others must be off
    paid: bool = False  # every answer costs: a stopping run waits for those under way
    runs_model: bool = True  # False: `model.path` is not loaded, and rows do not name it


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


@dataclass(frozen=True, slots=True)
class DataSet:
    """Rows that a run asks (`testing`) or has written (`inference_output`), for a tracker.

    `digest` is a hash of the content. `source` says where they lie: `path`, or `hub` with `config`,
    `split` and `revision`; nothing for a set that ships with its task.
    """

    role: Literal["testing", "inference_output"]
    name: str
    digest: str
    rows: int
    source: Mapping[str, str]


class Tracker(Protocol):
    """Where parameters, metrics and files of a run are kept beside its folder.

    Construction is cheap and refuses a missing library. The other methods may fail or hang as they
    like: they are called from a thread of their own, in order.
    """

    report: bool  # whether the HTML report is wanted
    rows: bool  # whether the file of rows is

    def start(self, name: str, params: Mapping[str, Param], tags: Mapping[str, str]) -> None:
        """A point begins."""

    def use(self, data_set: DataSet) -> None:
        """What is asked, after `start`; at the end what was written."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Metrics; `step` is the training step of the model."""

    def attach(self, path: Path) -> None:
        """A file, which is gone after `finish`."""

    def finish(self, status: str) -> None:
        """The point ended: `complete`, `shared`, `failed` or `interrupted`."""


@runtime_checkable
class Quantization(Protocol):
    """In which numbers a model's weights are held. A backend honours it, or refuses it by name."""

    @property
    def name(self) -> str:
        """The option's stable word, a column of every row; `none`: as the checkpoint is."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Kinds of device that it runs on (`cuda`); empty: any."""

    def identity(self) -> dict[str, Any]:
        """What of it makes a row what it is. Values are JSON."""


class Backend(Protocol):
    """Generates text.

    A backend is a class that subclasses this one; only `name` and `generate` must be written, the
    rest has a body for a backend that needs nothing special.

    Its constructor gets the settings of its YAML under `conf/backend/` by keyword. It also gets, if
    it has parameters of these names:

    - `model` (`ModelSpec`): which weights, tokenizer and template. A backend that ignores them says
      `Capabilities(runs_model=False)`; one that reads some keys names them in `model_keys`, and
      others are refused.
    - `quantization` (`Quantization`). Without the parameter, options other than `none` are refused
      for it.
    - `cache_dir` (`str | None`): the value of `run.cache_dir`.

    The constructor checks its values, raising `SpecError` with the config key, and does no I/O.
    Then `discover` is awaited; only after it are `capabilities` and `identity` asked. Entering the
    backend loads the model; it may be entered again after it was left.
    """

    name: str
    capabilities: Capabilities = Capabilities()
    capacity: int = 16  # traces it wants open at once; read again after entering, and as it goes
    quantization: str = "none"  # the name of the `Quantization` that it honours
    model_keys: tuple[str, ...] | None = None  # of `model`, those it reads; None: all of them
    follows: bool = False  # a rank above 0 of several: `follow` is awaited, and nothing else

    async def discover(self) -> None:
        """Ask what `capabilities` and `identity` depend on, such as what a service can do."""
        return

    def expect(self, sampling: Sampling) -> None:
        """Told, before entering, how requests will be sampled; of every point that shares the load.

        A chat also tells it of settings that change while it is entered.

        Raises:
            SpecError: what `capabilities` cannot say in general, such as a regex that is none, or
                what would have to be known before loading.
        """
        return

    def succeed(self, previous: "Backend") -> None:
        """Told, before either is entered, of the backend of this process that is left before.

        What both load may then be loaded once. The default shares nothing.
        """

    def identity(self) -> dict[str, Any]:
        """What of model and backend makes a row what it is; known before entering.

        Values are JSON. `backend` is a stable word, `model.step` the training step if any.
        """
        return {"backend": self.name}

    def describe(self) -> dict[str, Any]:
        """Device, dtype, batch size, versions and counters so far, for the attempt record."""
        return {}

    def preview(self, prompt: Prompt) -> str:
        """The prompt as the model will see it, special tokens included.

        Loads a tokenizer at most.
        """
        turns = [f"{message.role}: {spelled(message.content)}\n" for message in prompt.messages]
        return "".join(turns) + "assistant: " + spelled(prompt.prefill)

    async def __aenter__(self) -> Self:
        """Load."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Unload; requests under way end."""
        return

    async def generate(self, request: Request) -> Generation:
        """Make one generation. Cancelling the call drops the request.

        The same request gives the same text whatever runs beside it, as far as the backend can.

        Raises:
            PromptTooLongError: the prompt does not fit into the model's context.
            BackendLostError: this request and every other would fail.
            StoppedError: it waited when `send_no_more` was called.
        """
        raise NotImplementedError

    def force(self, prompt: Prompt, generation: Generation) -> ForcedTokens:
        """The ids of a prompt, and those of a generation that followed it, to be scored.

        The generation's own ids are taken where they spell its text in this model's tokenizer. Else
        its text is encoded, with the stop string that ended it.

        Raises:
            SpecError: the prompt cannot be written.
        """
        raise NotImplementedError

    async def score(self, rows: Sequence[ForcedTokens]) -> list[TokenScores]:
        """What the decoder would have measured, had it drawn these ids: raw, at temperature 1.

        Rows may be of any lengths and none changes another's numbers. A backend that can says
        `Capabilities(scores=True)`; it can score while it generates.

        Raises:
            SpecError: a prompt is empty, or ids are not the model's or more than its positions.
        """
        raise NotImplementedError

    def send_no_more(self) -> None:
        """The run is ending: calls that wait to be sent, or sent again, raise `StoppedError`.

        Those under way go on.
        """
        return

    def release(self, trace_id: int) -> None:
        """Forget what is cached for a trace, which is over."""
        return

    async def follow(self) -> None:
        """What ranks above 0 do instead of being entered; returns once rank 0 has dismissed them.

        Raises:
            Exception: what failed here; the run ends on every rank.
        """
        return

    def dismiss(self) -> None:
        """Rank 0 is done, whether it was entered or not: ranks above 0 return from `follow`."""
        return
