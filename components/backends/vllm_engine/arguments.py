"""The arguments of vLLM's engine: those of a run's YAML, checked by vLLM's own names, and ours."""

import dataclasses
import difflib
import importlib.util
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from components.backends.vllm_engine.measured import DRAWABLE, MeasuringWorker
from components.models.adapters import CONFIG
from components.models.checkpoint import Checkpoint
from components.models.source import local_folder
from components.models.weight_files import read_json
from pipeline.spec import ModelSpec, SpecError, require

LEAST = (0, 32)  # the release that this backend was tried with
INSTALL = (
    "backend=vllm needs vLLM in the environment that Rethink runs in. It brings another torch, so "
    "give it an environment of its own: `pip install vllm -e .` there, or, for processors, "
    "`make .venv-vllm/installed` (docs/distributed.md)"
)
# Arguments that a run decides elsewhere, or that this backend relies on, and what to set instead.
_OURS = {
    "model": "model.path",
    "revision": "model.revision",
    "tokenizer": "model.tokenizer",
    "tokenizer_revision": "model.tokenizer",
    "trust_remote_code": "model.trust_remote_code",
    "dtype": "quantization (none, fp32, bf16 or fp16)",
    "seed": "run.seed: every request has a seed of its own",
    "enable_lora": "model.adapter",
    "max_lora_rank": "model.adapter",
    "max_loras": "model.adapter",
    "data_parallel_size": "run.shards: one process for each group of GPUs",
    "generation_config": "sampling",
    "override_generation_config": "sampling",
    "skip_tokenizer_init": "nothing: ids go in and come out",
    "logits_processors": "backend.entropy_by",
    "worker_extension_cls": "backend.entropy_by",
    "logprobs_mode": "nothing: entropies and logprobs are of raw logits",
    "max_logprobs": "nothing: one logprob a token is asked for",
    "scheduling_policy": "nothing: earlier traces go first",
    "runner": "nothing: it generates",
    "convert": "nothing: it generates",
}
# Those that say where and how fast rows are computed, and not which rows they are.
_PLACEMENT = frozenset(
    """
    tensor_parallel_size pipeline_parallel_size distributed_executor_backend gpu_memory_utilization
    kv_cache_memory_bytes max_num_seqs max_num_batched_tokens enforce_eager enable_prefix_caching
    enable_chunked_prefill async_scheduling block_size cpu_offload_gb swap_space load_format
    download_dir compilation_config max_parallel_loading_workers disable_custom_all_reduce
    master_addr master_port nnodes node_rank numa_bind device_ids
    """.split()
)


def require_vllm() -> None:
    """Refuse to go on without vLLM. Raises SpecError, which says how to install it."""
    if importlib.util.find_spec("vllm") is None:
        raise SpecError(INSTALL)


def prepare_process() -> None:
    """What vLLM reads from the environment; it is to be said before vLLM is imported."""
    # A forked engine would share this process's threads, which hang in it.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


def refuse_ours(options: Mapping[str, Any]) -> None:
    """Refuse arguments that are not to be given under `backend.engine`.

    Raises:
        SpecError: names the key, and the one to set instead.
    """
    for name in options:
        if name in _OURS or name.startswith("data_parallel_"):
            instead = _OURS.get(name, _OURS["data_parallel_size"])
            raise SpecError(f"backend.engine.{name} must be left out; set instead {instead}")


def refuse_unknown(options: Mapping[str, Any]) -> None:
    """Refuse arguments that the installed vLLM does not have, and a vLLM that is too old.

    Imports vLLM, which takes seconds.

    Raises:
        SpecError: names the key and vLLM's nearest ones.
    """
    prepare_process()
    from vllm import AsyncEngineArgs, __version__

    release = re.match(r"(\d+)\.(\d+)\.", __version__)
    new_enough = release is None or (int(release[1]), int(release[2])) >= LEAST
    least = ".".join(map(str, LEAST))
    require(new_enough, "backend=vllm", f"have vLLM {least} or newer installed", __version__)
    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    for name in options:
        near = difflib.get_close_matches(name, known, 3)
        hint = f", such as {' or '.join(near)}" if near else ""
        rule = f"be an argument of vLLM {__version__}'s AsyncEngineArgs{hint}"
        require(name in known, f"backend.engine.{name}", rule, options[name])


def row_changing(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are part of what a row is, under their config keys."""
    return {f"backend.engine.{k}": v for k, v in sorted(options.items()) if k not in _PLACEMENT}


def engine_arguments(
    options: Mapping[str, Any], spec: ModelSpec, checkpoint: Checkpoint, dtype: str, drawable: int
) -> dict[str, Any]:
    """Arguments of `AsyncEngineArgs`; the logits processor is not among them.

    Args:
        options: those of the run.
        spec: says whether code of the checkpoint may run.
        checkpoint: a prepared one.
        dtype: vLLM's name for the type of the weights.
        drawable: how many ids the tokenizer has.
    """
    extra = {**options.get("additional_config", {}), DRAWABLE: drawable}
    worker = f"{MeasuringWorker.__module__}.{MeasuringWorker.__name__}"
    arguments = {
        **options,
        "model": checkpoint.weights.location,
        "revision": checkpoint.weights.revision,
        "tokenizer": checkpoint.tokenizer.location,
        "tokenizer_revision": checkpoint.tokenizer.revision,
        "trust_remote_code": spec.trust_remote_code,
        "dtype": dtype,
        "skip_tokenizer_init": True,
        "generation_config": "vllm",  # the checkpoint's own sampling is not asked
        "max_logprobs": -1,  # the self-test asks for all of a few tokens
        "scheduling_policy": "priority",
        "disable_log_stats": True,
        "worker_extension_cls": worker,
        "additional_config": extra,
    }
    if checkpoint.adapter is not None:
        arguments |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": _rank(checkpoint)}
    return arguments


def adapter_folder(checkpoint: Checkpoint) -> Path:
    """Where the files of a checkpoint's LoRA adapter lie."""
    assert checkpoint.adapter is not None
    folder = local_folder(checkpoint.adapter)
    assert folder is not None, "resolve() finds adapters that are here"
    return folder


def _rank(checkpoint: Checkpoint) -> int:
    """The least rank of those that vLLM reserves room for, which holds the adapter's."""
    own = read_json(adapter_folder(checkpoint) / CONFIG).get("r")
    ranks = (1, 8, 16, 32, 64, 128, 256, 320, 512)
    rule = f"have a rank (r of its {CONFIG}) of at most {ranks[-1]} with backend=vllm"
    require(isinstance(own, int) and own <= ranks[-1], "model.adapter", rule, own)
    assert isinstance(own, int)
    return next(rank for rank in ranks if rank >= own)
