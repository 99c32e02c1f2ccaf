"""vLLM's asynchronous engine: ids go in, ids come out as they are drawn."""

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from components.backends.vllm_engine.arguments import prepare_process
from components.backends.vllm_engine.engine_log import EngineLog
from components.backends.vllm_engine.measured import EXTRA, WORKER_METHOD
from components.backends.vllm_engine.together import Together
from pipeline.protocols import BackendLostError
from pipeline.spec import SpecError

_LOG = logging.getLogger(__name__)
_SHUTDOWN = 4.0  # seconds for the engine's processes to end by themselves
_FETCHED = 512  # requests whose entropies are fetched in one call
_PROCESSORS = {
    False: "components.backends.vllm_engine.first_runner_processor:EntropyProcessor",
    True: "components.backends.vllm_engine.second_runner_processor:EntropyProcessor",
}


class Engine:
    """A running engine. `start` makes it; it is used on one event loop."""

    def __init__(self, llm: Any, log: EngineLog, lora: Any, second_runner: bool) -> None:
        """As `start` calls it."""
        self.runner = "second" if second_runner else "first"
        self.config = llm.vllm_config
        self._llm, self._log, self._lora = llm, log, lora
        self._keys = itertools.count(1)
        self._dropped: list[int] = []
        self._is_told = False  # that the engine has died
        self._fetches = Together(self._fetch, _FETCHED)

    @property
    def context(self) -> int:
        """Positions that a row may have."""
        return int(self.config.model_config.max_model_len)

    @property
    def max_rows(self) -> int:
        """Rows that are decoded together."""
        return int(self.config.scheduler_config.max_num_seqs)

    @property
    def has_processor(self) -> bool:
        """Whether it was started with the logits processor for entropies."""
        return bool(self.config.model_config.logits_processors)

    @property
    def device(self) -> str:
        """The kind of device."""
        return str(self.config.device_config.device_type)

    @property
    def dtype(self) -> str:
        """The type of the weights."""
        return str(self.config.model_config.dtype).removeprefix("torch.")

    def key(self) -> int:
        """A number for a request whose entropies are wanted."""
        return next(self._keys)

    async def stream(
        self, ids: Sequence[int], fields: Mapping[str, Any], key: int, trace_id: int, measure: bool
    ) -> AsyncGenerator[tuple[list[int], list[Mapping[int, Any]]]]:
        """The ids that follow a prompt, and vLLM's logprobs of each; some at a time.

        Closing the iterator drops the request.

        Args:
            ids: the prompt's.
            fields: of vLLM's `SamplingParams`.
            key: as `key` made it.
            trace_id: requests of lower ones go first.
            measure: whether the logits processor is to measure entropies.

        Raises:
            BackendLostError: the engine has died, with its own error.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.exceptions import EngineDeadError

        extra = {EXTRA: [key, len(ids)]} if measure else None
        kind = RequestOutputKind.DELTA
        params = SamplingParams(**fields, extra_args=extra, output_kind=kind)
        prompt = {"prompt_token_ids": list(ids)}
        how = {"lora_request": self._lora, "priority": trace_id}
        try:
            async with aclosing(self._llm.generate(prompt, params, str(key), **how)) as outputs:
                async for output in outputs:
                    (made,) = output.outputs
                    if made.finish_reason in ("abort", "error"):
                        raise BackendLostError(self._death(f"it ended a request: {made}"))
                    yield list(made.token_ids), list(made.logprobs or ())
        except EngineDeadError as error:
            raise BackendLostError(self._death(str(error))) from error

    async def entropies(self, key: int) -> list[float | None]:
        """What the logits processor has measured of a request that has ended, by index."""
        return await self._fetches.ask(key)

    def drop(self, key: int) -> None:
        """Forget a request whose entropies nobody will ask for."""
        self._dropped.append(key)

    async def close(self) -> None:
        """End the engine's processes."""
        await self._fetches.close()
        listening = self._llm.output_handler
        if listening is not None and not listening.done():  # it would report an engine that died
            listening.cancel()
            await asyncio.wait([listening])
        await asyncio.to_thread(self._llm.shutdown, timeout=_SHUTDOWN)
        self._log.close()

    async def _fetch(self, keys: Sequence[int]) -> Sequence[list[float | None]]:
        """Of the workers one samples; the others have nothing."""
        from vllm.v1.engine.exceptions import EngineDeadError

        dropped, self._dropped = self._dropped, []
        asked = [*keys, *dropped]
        try:
            replies = await self._llm.collective_rpc(WORKER_METHOD, args=(asked,))
        except EngineDeadError as error:
            raise BackendLostError(self._death(str(error))) from error
        of_keys = zip(*(reply[: len(keys)] for reply in replies), strict=True)
        return [max(said, key=len) for said in of_keys]

    def _death(self, otherwise: str) -> str:
        """The sentence of its end; what its processes logged goes into our log, once."""
        if not self._is_told:
            self._is_told = True
            _tell(self._log)
        codes = _exit_codes(self._llm)
        ended = f" (exit codes of its processes: {codes})" if codes else ""
        return f"vLLM's engine has died: {self._log.error() or otherwise}{ended}"


async def start(arguments: Mapping[str, Any], measure: bool, adapter: str | None) -> Engine:
    """Load the model and start the engine's processes; takes from seconds to minutes.

    Args:
        arguments: of vLLM's `AsyncEngineArgs`.
        measure: load the logits processor for entropies.
        adapter: folder of a LoRA adapter that every request uses.

    Raises:
        SpecError: vLLM refuses the arguments or cannot load the model; it is said why.
    """
    log = EngineLog()
    try:
        return await asyncio.to_thread(_started, arguments, measure, adapter, log)
    except BaseException:
        log.close()
        raise


def _started(
    arguments: Mapping[str, Any], measure: bool, adapter: str | None, log: EngineLog
) -> Engine:
    prepare_process()
    from vllm import AsyncEngineArgs
    from vllm.lora.request import LoRARequest
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM

    try:
        made = AsyncEngineArgs(**arguments)
        config = made.create_engine_config(UsageContext.LLM_CLASS)
        second = _is_second_runner(config)
        if measure and config.speculative_config is None:
            config.model_config.logits_processors = [_PROCESSORS[second]]
        llm = AsyncLLM.from_vllm_config(config, disable_log_stats=True)
    except Exception as error:
        _tell(log)
        why = log.error() or " ".join(f"{type(error).__name__}: {error}".split())
        raise SpecError(f"vLLM does not start with model.path and backend.engine: {why}") from error
    lora = LoRARequest("adapter", 1, adapter) if adapter else None
    return Engine(llm, log, lora, second)


def _tell(log: EngineLog) -> None:
    """Put what vLLM's processes logged of an error into the run's log."""
    if text := log.text():
        _LOG.error("vLLM's processes logged:\n%s", text)


def _is_second_runner(config: Any) -> bool:
    """Whether vLLM's newer model runner computes; older versions know it by the environment."""
    import vllm.envs as envs

    chosen = getattr(config, "use_v2_model_runner", None)
    return bool(getattr(envs, "VLLM_USE_V2_MODEL_RUNNER", False) if chosen is None else chosen)


def _exit_codes(llm: Any) -> list[int]:
    """Of the engine's processes that have ended."""
    resources = getattr(getattr(llm, "engine_core", None), "resources", None)
    processes = getattr(getattr(resources, "engine_manager", None), "processes", ())
    return [each.exitcode for each in processes if each.exitcode is not None]
