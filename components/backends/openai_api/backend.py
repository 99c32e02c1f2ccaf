"""Any service that speaks OpenAI's HTTP API: hosted ones, gateways, servers of one's own."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from components.backends.openai_api.answers import Answered
from components.backends.openai_api.batch_api import BatchApi
from components.backends.openai_api.bounds import probability_fields
from components.backends.openai_api.credentials import refuse_credentials
from components.backends.openai_api.dialect import APIS, EXTENSIONS, OF_THE_API, Dialect
from components.backends.openai_api.endings import STOP_TEXTS, ending
from components.backends.openai_api.failures import GatewayError
from components.backends.openai_api.pace import Limits, Pace
from components.backends.openai_api.prefill import MODES, Findings, continues, question
from components.backends.openai_api.prices import Price, Tally, find
from components.backends.openai_api.response_cache import KeptAnswers
from components.backends.openai_api.retries import Retry
from components.backends.openai_api.samples import Samples, Share
from components.backends.openai_api.sender import Place, Sender
from components.backends.openai_api.service import Connection
from components.models.checkpoint import cache_folder
from pipeline.protocols import (
    BackendLostError,
    Capabilities,
    Generation,
    Prompt,
    PromptTooLongError,
    Request,
    spelled,
)
from pipeline.spec import ModelSpec, Sampling, SpecError, require

if TYPE_CHECKING:
    from components.backends.openai_api.prompt_text import PromptText


class OpenAiBackend:
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
        require(api in APIS, "backend.api", f"be one of {APIS}", api)
        if isinstance(prefill, bool):  # YAML reads a bare yes or no as one
            prefill = "yes" if prefill else "no"
        require(prefill in MODES, "backend.prefill", f"be one of {MODES}", prefill)
        require(stop_text in STOP_TEXTS, "backend.stop_text", f"be one of {STOP_TEXTS}", stop_text)
        require(0 <= top_logprobs <= 20, "backend.top_logprobs", "lie in 0..20", top_logprobs)
        refuse_credentials("backend.extra_body", extra_body or {})
        refuse_credentials("backend.prefill_body", prefill_body or {})
        filters = filters or []
        known = set(filters) <= set(EXTENSIONS)
        require(known, "backend.filters", f"hold some of {EXTENSIONS}", filters)
        require(bool(deployment), "backend.deployment", "name the service's model", deployment)
        self.name, self.quantization = service, "none"
        self._deployment, self._endpoint, self._api_version = deployment, endpoint, api_version
        self._movable, self._prefill, self._stop_text = connection.movable, prefill, stop_text
        self._top, self._batch = top_logprobs, batch
        self._step = model.step if isinstance(model.step, int) else 0
        self._cache = cache_folder(cache_dir)
        cap_name = "max_output_tokens" if api == "responses" else token_cap
        self._dialect = Dialect(
            api=api,
            deployment=deployment,
            cap_name=cap_name,
            sends=tuple(filters),
            top_logprobs=top_logprobs,
            seed=seed,
            extra=extra_body or {},
            prefill_extra=prefill_body or {},
        )
        url = connection.address(endpoint, deployment)
        place = Place(service, url, api_version, self._cache)
        self.pace = Pace(pace)
        self._make_sender: Callable[[], Sender] = lambda: Sender(
            connection, place, self._dialect, self.pace, retry, self._discard
        )
        self._sender = self._make_sender()
        together = samples_per_request and api != "responses" and not batch.enabled
        self._samples = Samples(self._ask, together)
        self._price: Price | None = find(prices or {}, deployment)
        self._tally = Tally()
        self._budgeted = False
        self._kept = KeptAnswers(Path(response_cache).expanduser()) if response_cache else None
        self._text = _prompt_text(model, self._cache) if api == "completions" else None
        if self._text is not None:
            self._continues: bool | None = prefill != "no"
        else:
            self._continues = None if prefill == "auto" else prefill == "yes"

    @property
    def capabilities(self) -> Capabilities:
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
    def capacity(self) -> int:
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
        attempts = self._sender.attempts
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
            **asdict(self._tally),
            "cost_usd": self._tally.cost_usd if not self._tally.unpriced else None,
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
        self._budgeted = True
        return self._price is not None

    def worst_cost(self, request: Request) -> float:
        """USD for a request that uses its cap, every byte of its prompt counted as a token."""
        assert self._price is not None
        messages = request.prompt.messages
        texts = [spelled(m.content) for m in messages] + [spelled(request.prompt.prefill)]
        prompt_tokens = sum(len(text.encode()) + 16 for text in texts)
        batched = self._batch.enabled and self._sender.met  # the first request goes directly
        return self._price.at_most(prompt_tokens, request.cap, batched)

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

    def expect(self, sampling: Sampling) -> None:
        """Any value goes of what `capabilities` name; what a service refuses, it says itself."""

    def release(self, trace_id: int) -> None:
        """Nothing is cached per trace."""

    async def follow(self) -> None:
        """There is one process."""

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
        said, usage = share.said, share.usage
        made = usage.get("completion_tokens")
        alone = made if share.shared_by == 1 else None  # a part of several samples' usage
        text, tail, reason = ending(said, request, self._stop_text, alone)
        chosen, about_entropy = probability_fields(said, self._top if request.entropy else 0)
        reported = usage.pop("cost", None)
        cost = self._cost(usage, share.answered.batched) if reported is None else reported
        self._check_price(request, reported, share.shared_by)
        self._tally.add(usage, cost)
        extra: dict[str, Any] = {
            "endpoint": self._endpoint,
            "deployment": self._deployment,
            "api_version": self._api_version,
            "served_model": share.answered.model,
            "usage": usage,
            "cost_usd": cost,
            **about_entropy,
            **said.extra,
        }
        extra |= {"tokens_unknown": True} if made is None and not said.tokens else {}
        discarded = share.answered.discarded_usd if share.first else 0.0
        extra |= {"discarded_usd": discarded} if discarded else {}
        extra |= {"usage_shared_by": share.shared_by} if share.shared_by > 1 else {}
        return Generation(
            token_ids=[],
            num_tokens=_num_tokens(made, share),
            text=text,
            tail=tail,
            finish_reason=reason,
            prompt_tokens=(usage.get("prompt_tokens") or 0) * share.shared_by,
            logprobs=chosen,
            seconds=seconds,
            backend_columns=extra,
        )

    def _cost(self, usage: Mapping[str, Any], batched: bool) -> float | None:
        """USD by the price table; None without a price, or without usage that says it all."""
        if self._price is None or not usage.get("total_tokens"):
            return None
        return self._price.of(usage, batched)

    def _discard(
        self, request: Request, usage: Mapping[str, Any] | None, num_samples: int, batched: bool
    ) -> float:
        """Count an answer that cannot be used; its USD, at worst where its usage is unknown."""
        self._tally.discarded += 1
        usd = (usage or {}).get("cost")
        if usd is None and self._price is not None:
            worst, known = num_samples * self.worst_cost(request), self._cost(usage or {}, batched)
            usd = worst if known is None else known
        self._tally.cost_usd += usd or 0.0
        if request.spending is not None:
            request.spending.discarded(usd or 0.0)
        return float(usd or 0.0)

    def _check_price(self, request: Request, reported: float | None, shared_by: int) -> None:
        """Under a budget, a price table below what the service charges ends the run.

        The answers under way are kept.
        """
        if reported is None or not self._budgeted or self._price is None:
            return
        worst = self.worst_cost(request) + 1e-9
        if reported > worst:
            self._sender.lose(
                BackendLostError(
                    f"{self.name} reports {reported:.6g} USD for a request that backend.prices "
                    f"puts at {worst:.6g} USD at most, so run.budget cannot hold: set "
                    f"backend.prices.{self._deployment}, or run.budget=null"
                )
            )

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


def _num_tokens(reported: int | None, share: Share) -> int:
    """Generated tokens of one choice; its own probabilities count them where usage is shared."""
    tokens = share.said.tokens
    if reported is None or (share.shared_by > 1 and tokens):
        return len(tokens or ())
    return reported


def _prompt_text(model: ModelSpec, cache: Path) -> "PromptText":
    """Imported where it is needed: it brings Transformers with it."""
    from components.backends.openai_api.prompt_text import PromptText

    return PromptText(model, cache)
