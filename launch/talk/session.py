"""A model that is loaded and answers one prompt after another, from scripts, notebooks, asyncio."""

import asyncio
import itertools
import queue
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from pipeline.protocols import Backend, Generation, Group, Message, Phase, Prompt, Request
from pipeline.run.point import prompt_text, refuse_what_it_cannot
from pipeline.run.seeds import row_seed
from pipeline.spec import RunSpec, Sampling, SpecError, require

Outcome = TypeVar("Outcome")
ROLES = ("system", "user", "assistant")
PHASE = "output"  # of a run of one phase, whose seeds these are


@dataclass(slots=True)
class TalkSpec(RunSpec):
    """The spec of a run, whose task is not asked, and how prompts are written.

    `mode` is `chat` (the chat template, as in a run), `completion` (the text alone is continued),
    or `auto`: launch/chat.py takes completion where the tokenizer has no chat template, and
    `launch.api.load` takes chat.
    """

    mode: str = "auto"

    def __post_init__(self) -> None:
        """Check the mode, and what RunSpec checks."""
        RunSpec.__post_init__(self)
        modes = ("auto", "chat", "completion")
        require(self.mode in modes, "mode", f"be one of {', '.join(modes)}", self.mode)


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a stream: of its text, or of reasoning that a service sends apart from it."""

    text: str
    reasoning: bool = False


Parts = queue.SimpleQueue[Part | None]


@dataclass(eq=False)
class Stream:
    """Text of one generation as it comes; iterate over it, or over it with `async for`.

    The pieces are `str`, and joined they are the text of `generation`, the whole record. The loop
    ends with the generation. `close` ends it earlier, and drops what is still to come.
    """

    _future: Future[Generation]
    _parts: Parts

    def __iter__(self) -> Iterator[str]:
        """Pieces of text, none of them half a character. Raises what the backend raises."""
        return (part.text for part in self.parts() if not part.reasoning)

    async def __aiter__(self) -> AsyncIterator[str]:
        """The same without blocking the caller's event loop."""
        while (part := await asyncio.to_thread(self._parts.get)) is not None:
            if not part.reasoning:
                yield part.text
        await asyncio.wrap_future(self._future)

    def parts(self) -> Iterator[Part]:
        """The pieces, with those of reasoning that comes apart. Raises what the backend raises."""
        while (part := self._parts.get()) is not None:
            yield part
        _ = self.generation

    @property
    def generation(self) -> Generation:
        """The whole record; waits for it."""
        return self._future.result()

    def close(self) -> None:
        """Stop the generation, if it has not ended."""
        self._future.cancel()


class Session:
    """A loaded model; a context manager, with `with` or `async with`.

    The backend lives on an event loop in a thread of its own, so that the plain methods also work
    in a notebook, whose own loop is running. In asyncio use the methods that begin with `a`.

    `sampling` may be replaced between prompts. Sampled text depends on `run.seed`, the prompt and
    the number of the sample alone: the same call gives the same text.
    """

    def __init__(self, spec: RunSpec, backend: Backend, completion: bool = False) -> None:
        """`completion`: prompts are continued as they stand, without a chat template."""
        self.spec = spec
        self.backend = backend
        self.sampling: Sampling = spec.sampling
        self.seed = spec.run.seed
        self.completion = completion
        self._numbers = itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Load the model. Raises SpecError for a setting that the backend cannot honour."""
        require(self.spec.run.budget is None, "run.budget", "be null: only runs stop by it", "one")
        refuse_what_it_cannot(self.spec, self.backend)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self._wait(self.backend.__aenter__())
        except BaseException:
            self._end_loop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        """Unload it."""
        try:
            self._wait(self.backend.__aexit__(None, None, None))
        finally:
            self._end_loop()

    async def __aenter__(self) -> Self:
        """Load the model while the caller's event loop goes on."""
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, *exc: object) -> None:
        """Unload it."""
        await asyncio.to_thread(self.__exit__)

    def generate(self, prompt: str) -> Generation:
        """The answer to one prompt. Raises SpecError, BackendLostError, RequestFailedError."""
        return self.generate_batch([prompt])[0]

    def generate_batch(self, prompts: Sequence[str]) -> list[Generation]:
        """The answers to several prompts, made side by side, in the order of the prompts."""
        futures = [self.submit(self.prompt(prompt)) for prompt in prompts]
        return _all_results(futures)

    def stream(self, prompt: str) -> Stream:
        """The answer to one prompt as it is made; its `generation` is the whole record."""
        return self.stream_prompt(self.prompt(prompt))

    def chat(self, messages: Sequence[Mapping[str, str]]) -> Generation:
        """The assistant's next turn after messages of the form `{"role": ..., "content": ...}`."""
        return _all_results([self.submit(prompt_of(messages))])[0]

    async def agenerate(self, prompt: str) -> Generation:
        """As `generate`, in asyncio."""
        return await asyncio.wrap_future(self.submit(self.prompt(prompt)))

    async def agenerate_batch(self, prompts: Sequence[str]) -> list[Generation]:
        """As `generate_batch`, in asyncio."""
        return list(await asyncio.gather(*(self.agenerate(prompt) for prompt in prompts)))

    async def achat(self, messages: Sequence[Mapping[str, str]]) -> Generation:
        """As `chat`, in asyncio."""
        return await asyncio.wrap_future(self.submit(prompt_of(messages)))

    def prompt(self, text: str) -> Prompt:
        """A text as a run's user turn, or as it stands where the mode is completion."""
        require(bool(text), "the prompt", "not be empty", text)
        system = self.spec.task.get("system_prompt")
        if self.completion:
            return Prompt((), (text,))
        head = (Message("system", (system.strip(),)),) if system and system.strip() else ()
        return Prompt((*head, Message("user", (text,))))

    @property
    def cap(self) -> int:
        """The most tokens of an answer."""
        given = self.sampling.max_new_tokens or self.spec.model.reasoning_cap
        cap = given or self.spec.task.get("max_output_tokens")
        assert isinstance(cap, int), "a task without max_output_tokens needs max_new_tokens"
        return cap

    def stream_prompt(
        self,
        prompt: Prompt,
        sample: int = 0,
        phase: Phase | None = None,
        sampling: Sampling | None = None,
    ) -> Stream:
        """The continuation of any prompt as it is made; the arguments are those of `submit`."""
        parts: Parts = queue.SimpleQueue()
        future = self.submit(prompt, sample, parts.put, phase, sampling)
        future.add_done_callback(lambda _: self._call_later(parts))
        return Stream(future, parts)

    def submit(
        self,
        prompt: Prompt,
        sample: int = 0,
        on_part: Callable[[Part], None] | None = None,
        phase: Phase | None = None,
        sampling: Sampling | None = None,
    ) -> Future[Generation]:
        """Ask for the continuation of any prompt.

        Args:
            prompt: what is continued.
            sample: another number gives another text.
            on_part: hears the text as it is made.
            phase: its stop strings and its cap; None: none, and this session's cap.
            sampling: None: this session's.
        """
        number, phase = next(self._numbers), phase or Phase(PHASE, self.cap)
        request = Request(
            prompt=prompt,
            stop=phase.stop,
            cap=phase.cap,
            sampling=sampling or self.sampling,
            seed=row_seed(self.seed, repr(prompt_text(prompt)), sample, None, PHASE),
            trace_id=number,
            group=Group(f"{number}/{PHASE}", 0, 1),
            on_token=on_part and (lambda text: on_part(Part(text))),
            on_reasoning=on_part and (lambda text: on_part(Part(text, reasoning=True))),
        )
        return self._start(self._generate(request))

    async def _generate(self, request: Request) -> Generation:
        try:
            return await self.backend.generate(request)
        finally:
            self.backend.release(request.trace_id)

    def _call_later(self, parts: Parts) -> None:
        """End a stream's parts, after those that the loop still has to hand over."""
        if self._loop is not None and self._loop.is_running():
            self._loop.call_soon_threadsafe(parts.put, None)
        else:
            parts.put(None)

    def _start(self, work: Coroutine[Any, Any, Outcome]) -> Future[Outcome]:
        if self._loop is None:
            work.close()
            raise SpecError("the model is loaded by entering it: with load(...) as model:")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _wait(self, work: Coroutine[Any, Any, Outcome]) -> Outcome:
        return self._start(work).result()

    def _end_loop(self) -> None:
        assert self._loop is not None and self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = None


def prompt_of(messages: Sequence[Mapping[str, str]]) -> Prompt:
    """Messages as dictionaries with the keys `role` and `content`. Raises SpecError."""
    require(len(messages) > 0, "messages", "hold at least one", list(messages))
    turns = []
    for index, message in enumerate(messages):
        key = f"messages[{index}]"
        require(set(message) == {"role", "content"}, key, "have role and content", dict(message))
        role = message["role"]
        require(role in ROLES, f"{key}.role", f"be one of {', '.join(ROLES)}", role)
        content = message["content"]
        rule = "be text without halves of surrogate pairs"
        require(isinstance(content, str) and is_whole(content), f"{key}.content", rule, content)
        turns.append(Message(role, (content,)))
    return Prompt(tuple(turns))


def is_whole(text: str) -> bool:
    """Whether no half of a surrogate pair is in a text: no tokenizer and no file takes one."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _all_results(futures: Sequence[Future[Outcome]]) -> list[Outcome]:
    """The results; what is still under way is dropped if one fails or the caller is interrupted."""
    try:
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()
