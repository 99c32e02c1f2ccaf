"""Causal language models of Transformers, in this process, with one of two decoders.

`slots` decodes rows that join and leave at every step; `generate` is the reference, in static
batches, for models that the first cannot take.
"""

import asyncio
import dataclasses
import gc
import importlib.metadata
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from components.backends.hf.assisted import load_assistant
from components.backends.hf.batches import Batches
from components.backends.hf.forced_reading import WithOwnAttention, reader_for
from components.backends.hf.machine import device_name, device_of, peak_memory, usable_cores
from components.backends.hf.model_facts import (
    attention_of,
    certain_text,
    drawable_ids,
    end_ids_of,
)
from components.backends.hf.phase_times import PhaseTimes
from components.backends.hf.processor import has_bfloat16
from components.backends.hf.rowwise import FIXED_ORDER
from components.backends.hf.sampling_plan import SamplingPlan, refuse_another_decoder
from components.backends.hf.scoring import Scorer
from components.backends.hf.settings import refuse_beside_decoder, refuse_values
from components.backends.hf.slots.build import Options, scheduler_factory, slots_for
from components.backends.hf.slots.engine import Engine
from components.backends.hf.slots.fit import UnfitModelError, fit
from components.backends.hf.slots.kv_cache import LayerShape
from components.backends.hf.slots.scheduler import Scheduler
from components.backends.hf.spread import Spread
from components.backends.hf.spreading import (
    most_of_places,
    refuse_beside_spreading,
    refuse_uncut,
    spread_report,
    tensor_parallel,
)
from components.backends.hf.static import StaticDecoder
from components.backends.hf.submission import on_this_loop
from components.decoding.carrying_model import carries
from components.decoding.forced_rows import ForcedRows, Visit
from components.decoding.forcing import forced
from components.decoding.prompt_encoder import PromptEncoder
from components.decoding.prompt_limits import refuse_prompt
from components.decoding.sequence import Limits, TokenSequence
from components.models.cache_size import cache_report
from components.models.checkpoint import Checkpoint, cache_folder, prepare, resolve
from components.models.identity import model_identity
from components.models.loading import (
    LoadableQuantization,
    capability_of,
    embedding_size,
    load_model,
    refuse_tokenizer_beyond,
)
from components.models.shared_base import SharedBase
from components.models.source import local_folder
from components.models.stored_quantization import stored_quantization
from components.models.tokenizer_loading import load_tokenizer
from components.models.weight_files import quantization_method, read_json
from components.quantization.report import weights_report
from components.ranks.place import Place, place
from pipeline.protocols import (
    FILTERS,
    STRATEGIES,
    Backend,
    Capabilities,
    ForcedTokens,
    Generation,
    Prompt,
    Request,
    TokenScores,
)
from pipeline.spec import ModelSpec, Sampling, require

_LOG = logging.getLogger(__name__)


class HfBackend(Backend):
    """Generates with a Transformers model on one device."""

    name = "hf"
    capabilities = Capabilities(
        continues_ids=True,
        assistant_prefill=True,
        entropy=True,
        logprobs=True,
        scores=True,
        streaming=True,
        filters=(*FILTERS, *STRATEGIES),
    )

    def __init__(
        self,
        model: ModelSpec,
        quantization: LoadableQuantization,
        cache_dir: str | None = None,
        device: str = "auto",
        batch_size: int = 8,
        decoder: str = "auto",
        slots: int | None = None,
        share: bool = True,
        compile: bool = True,
        use_cache: bool = True,
        threads: int | None = None,
        kv_cache_dtype: str = "auto",
        assistant_model: str | None = None,
        device_map: str | None = None,
        tp_plan: str | None = None,
        max_memory: Mapping[Any, Any] | None = None,
    ) -> None:
        """Check the arguments; nothing is loaded.

        Args:
            model: which weights, tokenizer and template.
            quantization: the type that weights are loaded in.
            cache_dir: where converted models are kept (`run.cache_dir`).
            device: auto, or a torch device.
            batch_size: rows of a batch of `generate`; out of memory halves it.
            decoder: slots, generate, or auto: slots where the model's architecture allows it.
            slots: rows that `slots` decodes together; None: what device and memory allow.
            share: compute ids that rows start with in common only once.
            compile: slots on CUDA: compile the layers, which takes some seconds at the start.
            use_cache: `generate` keeps keys and values; without, a step reads the whole row again.
            threads: CPU threads; None: as many as this process may use.
            kv_cache_dtype: of the keys and values that `slots` caches. auto: the model's type;
                fp8: 8 bits, which halves the memory and the time of attention and is less exact.
            assistant_model: a small model with the same tokenizer (hub id, folder or file), whose
                guesses `generate` checks several at a time, row by row; they change no text.
            device_map: auto, balanced, balanced_low_0 or sequential: layers go to all devices of
                this process, one after another, and what does not fit to the processor's memory.
            tp_plan: auto: each of several ranks holds a part of every layer (tensor parallel).
            max_memory: the most of each place that `device_map` fills, `{0: 20GiB, cpu: 64GiB}`;
                what is left goes to disk.
        """
        refuse_values(batch_size, decoder, slots, threads, kv_cache_dtype)
        self._device = device_of(device)
        self._device_map = device_map
        self._most = most_of_places(device_map, max_memory)
        self._spread: Spread | None = None
        if device_map is not None or tp_plan is not None:
            refuse_beside_spreading(device_map, tp_plan, device, decoder, slots)
            decoder = "generate"
        elif (ranks := place()).world > 1 and "RANK" in os.environ:
            rule = f"be auto on {ranks.world} ranks; if each can hold the model, use run.shards"
            require(type(self) is not HfBackend, "backend.tp_plan", rule, tp_plan)
        if tp_plan is not None:
            self._spread_over(place(), split=False)
        several = self._spread is not None
        refuse_beside_decoder(decoder, kv_cache_dtype, assistant_model, use_cache, several)
        self.capacity = 2 * batch_size
        quantization.refuse(self._device.type, capability_of(self._device), None)
        self._spec = model
        self._quantization = quantization
        self.quantization = quantization.name
        self._cache = cache_folder(cache_dir)
        self._batch_size = batch_size
        self._decoder = decoder
        self.options = Options(slots, share, compile=compile, kv_cache_dtype=kv_cache_dtype)
        self._use_cache = use_cache
        self._threads = threads or usable_cores()
        self._resolved: Checkpoint | None = None
        self._prompts: PromptEncoder | None = None
        self._model: PreTrainedModel | None = None
        self._preloaded: PreTrainedModel | None = None
        self._limits: Limits | None = None
        self._weights: dict[str, Any] | None = None
        self._cache_size: dict[str, Any] | None = None
        self._queue: Batches | Engine | None = None
        self._scorer: Scorer | None = None
        self._static: StaticDecoder | None = None
        self._counters = {"prompt_tokens": 0, "generated_tokens": 0, "requests": 0}
        self._phases = PhaseTimes(partial(peak_memory, self._device, device_map is not None))
        self._unfinished: set[TokenSequence] = set()
        self._plan = SamplingPlan()
        self._assistant = assistant_model
        self._base: SharedBase | None = None

    def _spread_over(self, ranks: Place, split: bool) -> None:
        """Run on several ranks, as `Spread`. Raises SpecError where there are too few GPUs."""
        if self._device.type == "cuda":
            count = torch.cuda.device_count()
            rule = f"be cpu, or ranks of a node no more than its {count} GPUs"
            require(ranks.local_rank < count, "backend.device", rule, str(self._device))
            self._device = torch.device("cuda", ranks.local_rank)
        self._spread = Spread(ranks, split, self._device)
        self.follows = self._spread.follows
        self.capabilities = dataclasses.replace(self.capabilities, scores=False)

    async def discover(self) -> None:
        """Meet the other ranks, if there are any."""
        if self._spread is not None:
            await self._spread.meet()

    def expect(self, sampling: Sampling) -> None:
        """As `SamplingPlan.expect`: the decoder is chosen for all that it is told.

        Raises:
            SpecError: it cannot sample so, or not with the decoder that has been loaded.
        """
        if self._queue is not None:
            refuse_another_decoder(sampling, self.steps)
        beams = sampling.num_beams
        alone = self._spread is None or beams == 1
        require(alone, "sampling.num_beams", "be 1 on several ranks", beams)
        if self._assistant is not None:
            rule = "be null with an assistant model (backend.assistant_model)"
            require(sampling.regex is None, "sampling.regex", rule, sampling.regex)
            schema = sampling.json_schema
            require(schema is None, "sampling.json_schema", rule, schema)
        self._plan.expect(sampling, self._decoder)
        self.options = dataclasses.replace(self.options, changing=self._plan.changing)

    def succeed(self, previous: Backend) -> None:
        """As `Backend.succeed`: adapters over one base read it once."""
        if isinstance(previous, HfBackend) and type(self) is type(previous):
            adapted = self._checkpoint().adapter or previous._checkpoint().adapter
            if adapted and self._base_key() == previous._base_key() is not None:
                previous._base = previous._base or SharedBase()
                self._base = previous._base

    def _base_key(self) -> tuple[Any, ...] | None:
        """What the base's weights depend on, as they are read; None where they are not shared."""
        checkpoint, spec = self._checkpoint(), self._spec
        arguments = self._quantization.load_kwargs()
        merges = checkpoint.adapter is not None and spec.merge_adapter
        as_read = merges or "quantization_config" not in arguments
        spread = self._spread is not None or self._device_map is not None
        own_code = checkpoint.architecture is not None or spec.trust_remote_code
        if spread or own_code or not as_read:
            return None
        of = checkpoint.weights, checkpoint.identity["weights"], spec.attn_implementation
        return *of, spec.routing, spec.routing_window, arguments.get("dtype"), self._device

    def identity(self) -> dict[str, Any]:
        """Contents of checkpoint, tokenizer and template, precision, and how prompts are cut."""
        of = self.name, self._spec, self._checkpoint(), self._quantization
        return {**model_identity(*of), **self._cache_identity()}

    def _cache_identity(self) -> dict[str, str]:
        """The type of cached keys and values, where it is not the model's own."""
        chosen = self.options.kv_cache_dtype
        return {} if chosen == "auto" else {"kv_cache_dtype": chosen}

    def describe(self) -> dict[str, Any]:
        """Device, precision, sizes, versions, counters and peak memory so far."""
        model, queue = self._model, self._queue
        return {
            "device": device_name(self._device),
            **self._where(),
            "dtype": str(model.dtype).removeprefix("torch.") if model is not None else None,
            "weights": self._weights,
            "cache": self._cache_size,
            **(queue.describe() if queue else {}),
            "attn_implementation": attention_of(model) if model is not None else None,
            "use_cache": self._use_cache,
            "threads": self._threads,
            "versions": {p: importlib.metadata.version(p) for p in ("torch", "transformers")},
            **self._counters,
            "generated_tokens": self._num_generated(),
            "phases": self._phases.describe(),
            "peak_memory_bytes": peak_memory(self._device, self._device_map is not None),
        }

    def _where(self) -> dict[str, Any]:
        """How the model is spread, where it is."""
        if self._device_map is not None:
            devices = getattr(self._model, "hf_device_map", None) or {}
            return {"device_map": sorted({str(device) for device in devices.values()})}
        return {} if self._spread is None else {"ranks": self._spread.place.world}

    def _num_generated(self) -> int:
        """Tokens so far, those of unfinished sequences included; may be asked from any thread."""
        unfinished = sum(len(sequence.token_ids) for sequence in tuple(self._unfinished))
        return self._counters["generated_tokens"] + unfinished

    @property
    def model(self) -> PreTrainedModel:
        """The loaded model."""
        assert self._model is not None, "not entered"
        return self._model

    @property
    def steps(self) -> Any:
        """What computes steps, where the decoder is slots; for measurements."""
        return self._queue.scheduler.steps if isinstance(self._queue, Engine) else None

    def encode(self, prompt: Prompt) -> list[int]:
        """The prompt's ids."""
        return self._encoder().encode(prompt).ids

    def preview(self, prompt: Prompt) -> str:
        """The prompt's ids as text, special tokens included."""
        return self._encoder().preview(prompt)

    def preload(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        """Load model and tokenizer without a decoder; entering takes this model.

        Raises:
            SpecError: they cannot be loaded.
        """
        self._preloaded = self._preloaded or self._load_model()
        return self._preloaded, self._encoder().tokenizer

    async def __aenter__(self) -> Self:
        """Load tokenizer and weights, and start the decoder's thread.

        Where that fails, the other ranks are let go: what is spread is not entered again.
        """
        try:
            if self._spread is not None:
                self._spread.begin(self._lose)
            with self._phases.of("load"):
                start = await asyncio.to_thread(self._load)
                self._queue = start()
        except BaseException:
            self._unload()
            self.dismiss()
            raise
        self.capacity = self._queue.capacity
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Drop what is running and free the model."""
        if self._queue is not None:
            await self._queue.close()
        if self._spread is not None:
            self._spread.end()
        self._unload()

    def _unload(self) -> None:
        self._model = self._queue = self._scorer = self._static = self._base = None
        if self._device.type == "cuda":
            gc.collect()  # compiled layers and what they call hold each other
            torch.cuda.empty_cache()

    async def follow(self) -> None:
        """As `Backend.follow`: load with rank 0, and make the calls that it makes."""
        assert self._spread is not None and self.follows, "rank 0 is entered"
        await asyncio.to_thread(self._spread.follow, self._load_to_follow, self._unload)

    def _load_to_follow(self) -> Callable[[dict[str, Any]], None]:
        self._load()
        assert self._static is not None, "several ranks take generate"
        return self._static.follow

    def dismiss(self) -> None:
        """As `Backend.dismiss`."""
        if self._spread is not None:
            self._spread.dismiss()

    def _lose(self, why: str) -> None:
        """A rank has gone: what runs fails, in whatever call the decoder's thread waits."""
        if isinstance(self._queue, Batches):
            self._queue.lose(why)

    async def generate(self, request: Request) -> Generation:
        """Continue the request's prompt; `on_token` is called on this event loop.

        Raises:
            SpecError: the prompt cannot be written, or is longer than the model reads.
            MemoryError: a single row does not fit.
        """
        assert self._queue is not None and self._limits is not None, "not entered"
        encoder = self._encoder()
        prompt = encoder.encode(request.prompt)
        self._check_prompt(prompt.ids)
        strategy = self._plan.strategy(
            request.sampling,
            len(prompt.ids),
            encoder,
            self._limits,
            embedding_size(self.model),
            self.steps,
        )
        if request.on_token is not None:
            told = on_this_loop(request.on_token, lambda error: row.fail(error))
            request = dataclasses.replace(request, on_token=told)
        row = TokenSequence(request, prompt, self._limits, encoder.decode, encoder.pieces, strategy)
        self._unfinished.add(row)
        try:
            generation = await self._queue.submit(row)
        finally:
            self._unfinished.discard(row)
        self._counters["requests"] += 1
        self._counters["prompt_tokens"] += generation.prompt_tokens
        self._counters["generated_tokens"] += len(generation.token_ids)
        return generation

    def force(self, prompt: Prompt, generation: Generation) -> ForcedTokens:
        """As `Backend.force`; loads a tokenizer at most."""
        return forced(self._encoder(), prompt, generation)

    async def score(self, rows: Sequence[ForcedTokens]) -> list[TokenScores]:
        """As `Backend.score`, in the decoder's thread.

        Raises:
            SpecError: as `Backend.score`.
            FloatingPointError: the model's logits are not finite.
            MemoryError: a single position does not fit.
        """
        assert self._queue is not None and self._scorer is not None, "not entered"
        return await self._queue.call(partial(self._scorer.score, rows))

    async def read_logits(self, rows: Sequence[ForcedTokens], visit: Visit) -> None:
        """Show the raw logits before each given id to `visit`, in the decoder's thread."""
        assert self._queue is not None and self._scorer is not None, "not entered"
        await self._queue.call(partial(self._scorer.read, rows, visit))

    def release(self, trace_id: int) -> None:
        """The trace is over: the decoder forgets what it has cached."""
        if self._queue is not None:
            self._queue.release(trace_id)

    def _checkpoint(self) -> Checkpoint:
        if self._resolved is None:
            self._resolved = resolve(self._spec, self._cache)
        return self._resolved

    def _encoder(self) -> PromptEncoder:
        if self._prompts is None:
            tokenizer = load_tokenizer(self._ready(), self._spec)
            self._prompts = PromptEncoder(tokenizer, self._spec)
        return self._prompts

    def _ready(self) -> Checkpoint:
        """The checkpoint in folders that Transformers reads."""
        self._resolved = prepare(self._checkpoint(), self._cache)
        return self._resolved

    def _load(self) -> Callable[[], Batches | Engine]:
        """Load the model; return what starts its decoder, on the event loop."""
        os.environ.setdefault(*FIXED_ORDER)
        torch.set_num_threads(self._threads)
        encoder = self._encoder()
        model, self._preloaded = self._preloaded or self._load_model(), None
        vocabulary = encoder.tokenizer.get_vocab()
        self._weights = self._report(model)
        refuse_tokenizer_beyond(model, vocabulary, certain_text(encoder.tokenizer))
        context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._limits = Limits(encoder.end_ids(end_ids_of(model.generation_config)), context)
        self._model = model
        allowed = drawable_ids(model, vocabulary).to(model.device)
        reason = self._why_generate()
        if reason is not None:
            self._need_own_cache_type(f"{reason}, which takes generate")
            _LOG.info("decoding with generate: %s", reason)
        elif self._decoder != "generate":
            make = self._slots(model, allowed)
            if make is not None:
                return make
        return self._reference(model, allowed, vocabulary)

    def _why_generate(self) -> str | None:
        """The setting that only the reference decoder honours, if there is one."""
        if self._plan.searches:
            return "sampling.num_beams above 1"
        return None if self._assistant is None else "backend.assistant_model"

    def _reference(
        self, model: PreTrainedModel, allowed: torch.Tensor, vocabulary: dict[str, int]
    ) -> Callable[[], Batches]:
        """What starts the reference decoder."""
        self._cache_size = cache_report(model)
        self._scorer = self._make_scorer(model, paged=False)
        score = self._scorer.score
        assistant = None
        if self._assistant is not None:
            how = self._cache, self._quantization
            assistant = load_assistant(self._assistant, model, vocabulary, *how)
        lockstep = self._spread.lockstep() if self._spread is not None else None
        static = StaticDecoder(
            model, allowed, self._use_cache, self._threads, score, assistant, lockstep, self._phases
        )
        self._static = static
        rows_at_once = self._spread.rows_at_once if self._spread is not None else 1
        return lambda: Batches(static.run, self._batch_size * rows_at_once)

    def _slots(self, model: PreTrainedModel, allowed: torch.Tensor) -> Callable[[], Engine] | None:
        """What starts the decoder of slots; None where the model must take the other."""
        attention = model.config.get_text_config()._attn_implementation
        try:
            if carries(model) and not self._use_cache:
                raise UnfitModelError("it keeps no router windows with backend.use_cache=false")
            layers = fit(model)
        except UnfitModelError as error:
            rule = f"not be slots for model={self._spec.name}: {error}"
            require(self._decoder == "auto", "backend.decoder", rule, self._decoder)
            self._need_own_cache_type(f"a model that must take generate: {error}")
            _LOG.warning("decoding with generate, since the model does not fit slots: %s", error)
            return None
        kept = [each for each in layers if isinstance(each, LayerShape)]
        if not kept:
            self._need_own_cache_type("a model that keeps a state instead of keys and values")
        cached = self.options.as_cached(kept)
        self._cache_size = cache_report(model, sum(layer.bytes for layer in cached) or None)
        reads_alone = partial(WithOwnAttention, model, attention, self._use_cache)
        self._scorer = self._make_scorer(
            model, bool(kept), own=reads_alone if carries(model) else None
        )
        slots = slots_for(self.options, self._device)
        scheduler = scheduler_factory(model, layers, allowed, self.options)

        def make(count: int) -> Scheduler:
            made = scheduler(count)
            made.phases = self._phases
            return made

        return lambda: Engine(make, slots, self._threads, self._device)

    def _make_scorer(
        self, model: PreTrainedModel, paged: bool, own: Callable[[], ForcedRows] | None = None
    ) -> Scorer:
        assert self._limits is not None
        return Scorer(
            own or partial(reader_for, model, paged, self._use_cache),
            embedding_size(model),
            self._limits.context,
        )

    def _need_own_cache_type(self, reason: str) -> None:
        chosen = self.options.kv_cache_dtype
        require(chosen == "auto", "backend.kv_cache_dtype", f"be auto for {reason}", chosen)

    def _load_model(self) -> PreTrainedModel:
        placement = self._placement()
        given = self._ready(), self._spec, self._quantization, self._device
        model = load_model(*given, placement, self._base)
        rule = "leave room for the embedding, the first part of the model"
        there = not self._most or model.device.type != "meta"
        require(there, "backend.max_memory", rule, self._most.get("max_memory"))
        if self._spread is not None and not self._spread.split:
            refuse_uncut(model)
        plain = stored_quantization(model.config) is None
        slow = model.dtype == torch.bfloat16 and not has_bfloat16()
        if self._device.type == "cpu" and plain and slow:
            _LOG.warning("computing in float32: the processor has no bfloat16 arithmetic")
            model.float()  # type: ignore[no-untyped-call]
        return model

    def _placement(self) -> dict[str, Any] | None:
        """Arguments of `from_pretrained` that spread the weights; None: all on the device.

        Raises:
            SpecError: there is one rank only.
        """
        if self._device_map is not None:
            disk = str(self._cache / "offload")
            return {"device_map": self._device_map, "offload_folder": disk, **self._most}
        if self._spread is None:
            return None
        folder = local_folder(self._ready().weights)
        config = read_json(folder / "config.json") if folder else {}
        return tensor_parallel(self._spread.place.world, config)

    def _report(self, model: PreTrainedModel) -> dict[str, Any]:
        """What the weights of this process are, for the attempt record."""
        if self._spread is not None:
            return spread_report(model)
        folder = local_folder(self._ready().weights)
        stored = quantization_method(folder) if folder else None
        return {**weights_report(model), "parameters": model.num_parameters(), "stored": stored}

    def _check_prompt(self, ids: Sequence[int]) -> None:
        assert self._limits is not None
        size = embedding_size(self.model)
        refuse_prompt(ids, self._limits.context, size, self._spec.max_length)
