"""Any service that speaks OpenAI's HTTP API: hosted ones, gateways, servers of one's own."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from components.backends.openai_api.answers import Answered
from components.backends.openai_api.batch_api import BatchApi
from components.backends.openai_api.dialect import OF_THE_API, Dialect
from components.backends.openai_api.failures import GatewayError
from components.backends.openai_api.generations import generation_of
from components.backends.openai_api.money import Money
from components.backends.openai_api.pace import Limits, Pace
from components.backends.openai_api.prefill import Findings, continues, question
from components.backends.openai_api.response_cache import KeptAnswers
from components.backends.openai_api.retries import Retry
from components.backends.openai_api.samples import Samples, Share
from components.backends.openai_api.sender import Place, Sender
from components.backends.openai_api.service import Connection
from components.backends.openai_api.settings import (
    keys_of_model,
    prefill_mode,
    refuse_settings,
)
from components.models.checkpoint import cache_folder
from pipeline.protocols import (
    Backend,
    BackendLostError,
    Capabilities,
    Generation,
    Prompt,
    PromptTooLongError,
    Request,
    spelled,
)
from pipeline.spec import ModelSpec, SpecError, require

if TYPE_CHECKING:
    from components.backends.openai_api.prompt_text import PromptText


class OpenAiBackend(Backend):
    """Generates by HTTP requests to one deployment of one service."""

    def __init__(
        self,
        model: ModelSpec,
        cache_dir: str | None = None,
        *,
        service: str,
        deployment: str,
        connection: Connection,
        pace: Limits,
        retry: Retry,
        batch: BatchApi,
        prices: Mapping[str, Any] | None = None,
        endpoint: str | None = None,
        api: str = "chat",
        api_version: str | None = None,
        prefill: str | bool = "no",
        token_cap: str = "max_tokens",
        stop_text: str = "left_out",
        top_logprobs: int = 0,
        seed: bool = True,
        samples_per_request: bool = False,
        filters: list[str] | None = None,
        extra_body: dict[str, Any] | None = None,
        prefill_body: dict[str, Any] | None = None,
        response_cache: str | None = None,
    ) -> None:
        """Check the settings; nothing is asked.

        Args:
            model: names the model in rows; its tokenizer writes the prompts of `api: completions`.
            cache_dir: where findings about services and batches under way are kept.
            service: the backend's name in rows.
            deployment: the model's name at the service.
            connection: address, headers, and which variable holds the key.
            pace: how many requests at once, and caps per minute.
            retry: time-outs and retries.
            batch: whether and how the Batch API is used.
            prices: USD per million tokens by model; needed for costs and `run.budget`.
            endpoint: the service's address or name, as rows show it.
            api: chat, completions or responses.
            api_version: sent as the query's `api-version`.
            prefill: whether the service goes on with a given assistant turn; auto: ask it once.
            token_cap: what the service calls the cap; corrected when it refuses the name.
            stop_text: whether the service leaves the stop string out of the text or keeps it.
            top_logprobs: likeliest tokens to ask for, per token; 0: none.
            seed: send the row's seed.
            samples_per_request: ask for all samples of a prompt at once (`n`).
            filters: sampling filters beyond temperature and top_p that the service takes.
            extra_body: fields added to every request.
            prefill_body: fields added to requests that open the assistant's turn.
            response_cache: folder of kept answers; null: every answer is new.
        """
        prefill, filters = prefill_mode(prefill), filters or []
        bodies = {"extra_body": extra_body, "prefill_body": prefill_body}
        refuse_settings(api, deployment, stop_text, top_logprobs, filters, bodies)
        self.name, self.quantization = service, "none"
        self._deployment, self._endpoint, self._api_version = deployment, endpoint, api_version
        self._movable, self._prefill, self._stop_text = connection.movable, prefill, stop_text
        self._top, self._batch = top_logprobs, batch
        rule = "be a number, or null, where a service has the model"
        require(model.step is None or isinstance(model.step, int), "model.step", rule, model.step)
        self._step = model.step or 0
        self._cache = cache_folder(cache_dir)
        self._dialect = Dialect(
            api=api,
            deployment=deployment,
            cap_name="max_output_tokens" if api == "responses" else token_cap,
            sends=tuple(filters),
            top_logprobs=top_logprobs,
            seed=seed,
            extra=extra_body or {},
            prefill_extra=prefill_body or {},
        )
        url = connection.address(endpoint, deployment)
        place = Place(service, url, api_version, self._cache)
        self.pace = Pace(pace)
        self._money = Money(service, deployment, prices or {}, self._is_batched, self._lose)
        self._make_sender: Callable[[], Sender] = lambda: Sender(
            connection, place, self._dialect, self.pace, retry, self._money.discarded
        )
        self._sender = self._make_sender()
        together = samples_per_request and api != "responses" and not batch.enabled
        self._samples = Samples(self._ask, together)
        self._kept = KeptAnswers(Path(response_cache).expanduser()) if response_cache else None
        self._text = _prompt_text(model, self._cache) if api == "completions" else None
        self.model_keys = keys_of_model(api, model.tokenizer)
        if self._text is not None:
            self._continues: bool | None = prefill != "no"
        else:
            self._continues = None if prefill == "auto" else prefill == "yes"

    @property  # both are computed: what is read here changes as the service answers
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        """What the service can do, known once `discover` has been awaited."""
        assert self._continues is not None, "discover() was not awaited"
        return Capabilities(
            assistant_prefill=self._continues,
            logprobs=self._top > 0,
            many_per_request=self._samples.together,
            streaming=not self._batch.enabled,
            paid=True,
            filters=("top_p", *OF_THE_API[self._dialect.api], *self._dialect.sends),
        )

    @property
    def capacity(self) -> int:  # type: ignore[override]
        """Traces wanted open: enough for the pace's present level, or for a whole batch."""
        if self._batch.enabled:
            return self._batch.max_requests
        return self.pace.wanted * (8 if self._samples.together else 1)

    def identity(self) -> dict[str, Any]:
        """The service, its deployment, and settings that change a text; never a key."""
        dialect = self._dialect
        return {
            "backend": "openai_api",
            "backend.service": self.name,
            "backend.endpoint": None if self._movable else self._endpoint,
            "backend.deployment": self._deployment,
            "backend.api": dialect.api,
            "backend.api_version": self._api_version,
            "backend.prefill": self._continues,
            "backend.stop_text": self._stop_text,
            "backend.seed": dialect.seed,
            "backend.extra_body": dict(dialect.extra),
            "backend.prefill_body": dict(dialect.prefill_extra),
            "model.step": self._step,
            **(self._text.identity() if self._text else {}),
        }

    def describe(self) -> dict[str, Any]:
        """Tokens, money, pace, and what the service turned out not to take."""
        attempts, tally = self._sender.attempts, self._money.tally
        return {
            "device": "service",
            "service": self.name,
            "endpoint": self._endpoint,
            "deployment": self._deployment,
            "api": self._dialect.api,
            "cap_name": self._dialect.cap_name,
            "left_out": sorted(self._dialect.dropped),
            "concurrency": int(self.pace.level),
            "throttled": self.pace.shrunk,
            "repeated_attempts": attempts.repeated if attempts else 0,
            "cache_hits": self._kept.hits if self._kept else 0,
            **asdict(tally),
            "cost_usd": tally.cost_usd if not tally.unpriced else None,
        }

    def preview(self, prompt: Prompt) -> str:
        """The prompt's text for completions, else the messages as JSON."""
        if self._text:
            return self._text.of(prompt)
        turns = [(m.role, spelled(m.content)) for m in prompt.messages]
        turns += [("assistant", spelled(prompt.prefill))] if prompt.prefill else []
        return "\n".join(json.dumps({r: text}, ensure_ascii=False) for r, text in turns)

    def priced(self) -> bool:
        """Whether the price table knows the deployment; asked where there is a budget."""
        return self._money.priced()

    def worst_cost(self, request: Request) -> float:
        """USD for a request that uses its cap, every byte of its prompt counted as a token."""
        return self._money.at_most(request)

    async def __aenter__(self) -> Self:
        """Read the key, make the client."""
        await self._sender.open(self._batch)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Drop what is under way and close the client."""
        await self._samples.close()
        await self._sender.close()

    async def generate(self, request: Request) -> Generation:
        """One answer, from the cache where one is kept.

        Raises:
            PromptTooLongError: the service says that the prompt exceeds the model's context.
            GatewayError: the request failed for good; the message holds no key.
            BackendLostError: so would every other.
        """
        key = self._cache_key(request)
        if self._kept and key and (kept := self._kept.get(key)):
            if request.on_token:
                request.on_token(kept.text)
            return kept
        start = time.monotonic()
        share = await self._samples.one(request)
        generation = self._generation(request, share, time.monotonic() - start)
        if self._kept and key:
            self._kept.put(key, generation)
        rest = generation.text[share.answered.num_told :]
        if request.on_token and rest:
            request.on_token(rest)
        return generation

    def send_no_more(self) -> None:
        """Whoever waits to be sent, or for a batch, gets a StoppedError."""
        self._sender.stop()

    def _is_batched(self) -> bool:
        """Whether the next request goes in a batch; the first one goes directly."""
        return self._batch.enabled and self._sender.met

    def _lose(self, error: BackendLostError) -> None:
        self._sender.lose(error)

    async def _ask(self, request: Request, count: Callable[[], int]) -> Answered:
        text = self._text.of(request.prompt) if self._text else None
        try:
            return await self._sender.ask(request, count, text)
        except GatewayError as error:
            if error.is_context_exceeded:
                raise PromptTooLongError(f"{self.name}: {error}") from None
            raise

    def _cache_key(self, request: Request) -> str | None:
        if self._kept is None:
            return None
        text = self._text.of(request.prompt) if self._text else None
        where = self.identity() | {"backend.endpoint": self._endpoint}
        return self._kept.key(where, self._dialect.body(request, 1, text), request.seed)

    def _generation(self, request: Request, share: Share, seconds: float) -> Generation:
        cost = self._money.answered(request, share.usage, share.answered.batched)
        columns = {
            "endpoint": self._endpoint,
            "deployment": self._deployment,
            "api_version": self._api_version,
            "served_model": share.answered.model,
            "usage": share.usage,
            "cost_usd": cost,
        }
        return generation_of(request, share, columns, self._stop_text, self._top, seconds)

    def may_have_paid(self, request: Request) -> bool:
        """Whether a request that was given up goes on all the same, shared with others."""
        return self._samples.together and request.group.size > 1

    async def discover(self) -> None:
        """With `prefill: auto`, ask the service if it goes on with a given turn, unless known."""
        if self._continues is not None:
            return
        findings = Findings(self._cache)
        where = {
            "service": self.name,
            "endpoint": self._endpoint,
            "deployment": self._deployment,
            "api": self._dialect.api,
            "body": dict(self._dialect.prefill_extra) | dict(self._dialect.extra),
        }
        self._continues = findings.get(where)
        if self._continues is None:
            self._continues = await self._probe()
            findings.put(where, self._continues)

    async def _probe(self) -> bool:
        sender = self._make_sender()
        await sender.open()
        try:
            answered = await sender.ask(question(), lambda: 1, None)
        except GatewayError as error:
            if error.status in (400, 422):
                return False
            raise SpecError(f"backend.prefill=auto could not ask {self.name}: {error}") from None
        except BackendLostError as error:
            raise SpecError(f"backend.prefill=auto could not ask: {error}") from None
        finally:
            await sender.close()
        return continues(answered.choices[0].text)


def _prompt_text(model: ModelSpec, cache: Path) -> "PromptText":
    """Imported where it is needed: it brings Transformers with it."""
    from components.backends.openai_api.prompt_text import PromptText

    return PromptText(model, cache)
