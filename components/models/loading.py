"""From a checkpoint to a model that is ready to generate: shared by every in-process backend."""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging as transformers_logging

from components.models.adapters import merged, unmerged
from components.models.architecture import register
from components.models.checkpoint import Checkpoint
from components.models.out_of_memory import out_of_memory
from components.models.shared_base import SharedBase, built
from components.models.source import Source, local_folder
from components.models.stored_quantization import refuse_unreadable, settle, stored_quantization
from components.models.tensors import refuse_incomplete
from components.models.weight_files import tensor_names
from pipeline.protocols import Quantization
from pipeline.spec import ModelSpec, SpecError, require

_LOG = logging.getLogger(__name__)
# What wrappers put into the names of tensors: torch.compile, FullyShardedDataParallel and
# activation checkpointing anywhere, DataParallel and DistributedDataParallel at the start.
_WRAPPED = r"^module\.|(?<![^.])(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
_SUPPORT = {"sdpa": "_supports_sdpa", "flex_attention": "_supports_flex_attn"}
_READING_FAILS = (
    OSError,
    ValueError,
    ImportError,
    RuntimeError,
    KeyError,
    TypeError,
    AttributeError,
)


class LoadableQuantization(Quantization, Protocol):
    """A quantization that an in-process backend can apply while it loads a model."""

    def refuse(self, device: str, capability: float | None, stored: str | None) -> None:
        """Refuse a device, a CUDA compute capability or stored weights that cannot work.

        Raises:
            SpecError: says the reason and the nearest option that can.
        """

    def load_kwargs(self) -> dict[str, Any]:
        """Arguments of `from_pretrained`; `quantization_config` among them if there is one."""

    def after_loading(self, model: PreTrainedModel) -> PreTrainedModel:
        """The model with what is quantized only after loading."""


def load_model(
    checkpoint: Checkpoint,
    spec: ModelSpec,
    quantization: LoadableQuantization,
    device: torch.device,
    placement: Mapping[str, Any] | None = None,
    shared: SharedBase | None = None,
) -> PreTrainedModel:
    """The model of a prepared checkpoint on `device`, in evaluation mode.

    Every weight is the checkpoint's: a tensor that is missing, unexpected or of another shape is
    refused. An adapter is merged before weights are quantized, or laid beside them after it.

    Args:
        checkpoint: what `components.models.checkpoint.prepare` returned.
        spec: says which attention is used and whether code of the checkpoint may run.
        quantization: the type of the weights.
        device: where the weights go.
        placement: arguments of `from_pretrained` that spread them over devices or ranks instead.
        shared: the model without its adapter is taken from there, or left there for who comes next.

    Raises:
        SpecError: the checkpoint cannot be loaded as a causal language model; the message names the
            file or tensor, and the config key.
    """
    if checkpoint.architecture:
        register(checkpoint.architecture)
    source = checkpoint.weights
    folder = local_folder(source)
    names = tensor_names(folder) if folder else frozenset()
    placed: Mapping[str, Any] = {} if device.type == "cpu" else {"device_map": {"": str(device)}}
    if placement is not None:
        _refuse_adapter(checkpoint, spec)
        placed = placement
    with _errors_as_sentences(spec), quietly():
        config = _config(source, spec)
        stored = stored_quantization(config)
        quantization.refuse(device.type, capability_of(device), stored)
        refuse_unreadable(stored)
        given = quantization.load_kwargs()
        if "quantization_config" in given:
            _refuse_without_layers(config, spec, quantization.name)
        arguments = {
            "config": config,
            "attn_implementation": attention_for(config, spec.attn_implementation),
            "trust_remote_code": spec.trust_remote_code,
            "key_mapping": unwrapped(names),
            **(placement or placed),
        }
        beside = checkpoint.adapter is not None and not spec.merge_adapter
        if checkpoint.adapter is None or beside:
            model = _base(source, {**arguments, **given}, shared)
        elif stored:
            raise SpecError(
                f"model.merge_adapter must be false: these weights are stored quantized ({stored}),"
                " and what is added to them is rounded away"
            )
        else:
            model = _with_adapter(checkpoint, arguments, given, shared)
    with quietly():
        settle(model)
        model = quantization.after_loading(model)
    if beside:
        with _errors_as_sentences(spec), quietly():
            model = unmerged(model, _adapter_folder(checkpoint))
    model.train(False)
    return model


def empty_model(
    checkpoint: Checkpoint,
    spec: ModelSpec,
    quantization: LoadableQuantization,
    device: torch.device,
) -> PreTrainedModel:
    """The model of a checkpoint of ZeRO before its weights are there, in evaluation mode.

    Raises:
        SpecError: its config.json is that of no causal language model.
    """
    assert checkpoint.weights.config is not None, "a checkpoint of ZeRO"
    _refuse_adapter(checkpoint, spec)
    if checkpoint.architecture:
        register(checkpoint.architecture)
    folder = Path(checkpoint.weights.config)
    with _errors_as_sentences(spec), quietly():
        config = _config(Source("folder", str(folder)), spec)
        quantization.refuse(device.type, capability_of(device), stored_quantization(config))
        dtype = quantization.load_kwargs()["dtype"]
        auto: Any = AutoModelForCausalLM
        model = auto.from_config(
            config,
            dtype=checkpoint.dtype if dtype == "auto" else dtype,
            attn_implementation=attention_for(config, spec.attn_implementation),
            trust_remote_code=spec.trust_remote_code,
        )
        if (folder / "generation_config.json").is_file():
            model.generation_config = GenerationConfig.from_pretrained(folder)
    assert isinstance(model, PreTrainedModel)
    model.train(False)
    return model


def capability_of(device: torch.device) -> float | None:
    """The compute capability of a CUDA device, such as 8.9; None for another device."""
    if device.type != "cuda":
        return None
    major, minor = torch.cuda.get_device_capability(device)
    return major + minor / 10


def refuse_tokenizer_beyond(model: PreTrainedModel, vocabulary: dict[str, int], used: str) -> None:
    """Refuse a tokenizer that writes ids for which the model has no embedding.

    Some models (Gemma 3) come with tokens beyond their embedding that only other members of the
    family use, so those that nothing here writes are merely logged.

    Args:
        model: the loaded model.
        vocabulary: the tokenizer's tokens and their ids.
        used: text whose special tokens are certain to be written: the chat template, and the
            tokens that begin and end a sequence.

    Raises:
        SpecError: a token in `used` has no embedding; the message has both sizes.
    """
    size = embedding_size(model)
    beyond = sorted(token for token, index in vocabulary.items() if index >= size)
    if not beyond:
        return
    sizes = f"the tokenizer has ids up to {max(vocabulary.values())} and the model embeds {size}"
    written = [token for token in beyond if token in used]
    if written:
        rule = "be a tokenizer of this model"
        raise SpecError(f"model.tokenizer must {rule}: {sizes}, so {written[0]!r} has no embedding")
    _LOG.warning("%s: a prompt with %s is refused", sizes, ", ".join(beyond[:4]))


def unwrapped(names: Iterable[str]) -> dict[str, str] | None:
    """A `key_mapping` of Transformers that strips wrappers from names; None where there are none.

    Each of its patterns takes away one wrapper, so that there are as many as any name has. The
    number in a comment tells them apart.
    """
    depth = max((len(re.findall(_WRAPPED, name)) for name in names), default=0)
    return {f"(?#{n}){_WRAPPED}": "" for n in range(depth)} or None


def embedding_size(model: PreTrainedModel) -> int:
    """How many token ids the model has an embedding for."""
    weight: Any = model.get_input_embeddings().weight
    return int(getattr(weight, "ds_shape", weight.shape)[0])  # ZeRO keeps the whole shape there


def attention_for(config: PreTrainedConfig, asked: str) -> str:
    """The implementation of attention that is asked for, or `eager` where the model lacks it."""
    flag = "_supports_flash_attn" if asked.startswith("flash_attention") else _SUPPORT.get(asked)
    model_class = _model_class(config)
    if flag is None or model_class is None or getattr(model_class, flag, True):
        return asked
    _LOG.info(
        "model.attn_implementation=%s is eager for %s, which supports no other",
        asked,
        model_class.__name__,
    )
    return "eager"


def _refuse_adapter(checkpoint: Checkpoint, spec: ModelSpec) -> None:
    """Refuse an adapter on a model that is spread. Raises SpecError."""
    rule = "be null where devices or ranks share a model; launch/export_model.py merges it"
    require(checkpoint.adapter is None, "model.adapter", rule, spec.adapter or spec.path)


def _model_class(config: PreTrainedConfig) -> type[Any] | None:
    """The class that Transformers will make, or None where the checkpoint's own code defines it."""
    mapping: Any = AutoModelForCausalLM._model_mapping
    if type(config) not in mapping:
        return None
    model_class = mapping[type(config)]
    chosen: type[Any] = model_class[0] if isinstance(model_class, tuple) else model_class
    return chosen


def _refuse_without_layers(config: PreTrainedConfig, spec: ModelSpec, name: str) -> None:
    """Refuse a model in which there is nothing to quantize, seen in a copy without weights."""
    with torch.device("meta"):
        auto: Any = AutoModelForCausalLM
        skeleton = auto.from_config(config, trust_remote_code=spec.trust_remote_code)
    head = skeleton.get_output_embeddings()
    layers = [m for m in skeleton.modules() if isinstance(m, torch.nn.Linear | Conv1D)]
    if not [layer for layer in layers if layer is not head]:
        raise SpecError(
            f"quantization={name} must be none, fp32, fp16 or bf16 for {type(skeleton).__name__}, "
            "which has no linear layers but its output head"
        )


def _config(source: Source, spec: ModelSpec) -> PreTrainedConfig:
    config = AutoConfig.from_pretrained(
        source.location, revision=source.revision, trust_remote_code=spec.trust_remote_code
    )
    assert isinstance(config, PreTrainedConfig)
    _route(config, spec)
    return config


def _route(config: PreTrainedConfig, spec: ModelSpec) -> None:
    """Route memory as the spec says. Raises SpecError for a model that has none."""
    if spec.routing is None and spec.routing_window is None:
        return
    set_routing = getattr(config, "set_routing", None)
    if set_routing is None:
        rule = "be null: only memory-augmented models route"
        raise SpecError(f"model.routing must {rule}, and {spec.name} is a {config.model_type}")
    set_routing(spec.routing, spec.routing_window)


def _base(source: Source, arguments: dict[str, Any], shared: SharedBase | None) -> PreTrainedModel:
    """The model without its adapter, from memory where it lies there."""
    if shared is not None and shared.tensors:
        return shared.model(arguments)
    model = _from_pretrained(source, arguments)
    if shared is not None:
        shared.keep(model)
    return model


def _from_pretrained(source: Source, arguments: dict[str, Any]) -> PreTrainedModel:
    auto: Any = AutoModelForCausalLM
    model, loading = auto.from_pretrained(
        source.location,
        revision=source.revision,
        ignore_mismatched_sizes=True,  # reported, and refused below with both shapes
        output_loading_info=True,
        **arguments,
    )
    refuse_incomplete(loading, source.location)
    assert isinstance(model, PreTrainedModel)
    return model


def _with_adapter(
    checkpoint: Checkpoint,
    arguments: dict[str, Any],
    given: dict[str, Any],
    shared: SharedBase | None,
) -> PreTrainedModel:
    """Merge in floating point, then quantize: added to a 4-bit base, an adapter is rounded away."""
    folder = _adapter_folder(checkpoint)
    quantized = {key: value for key, value in given.items() if key == "quantization_config"}
    plain = {key: value for key, value in given.items() if key not in quantized}
    model = merged(_base(checkpoint.weights, {**arguments, **plain}, shared), folder)
    if not quantized:
        return model
    placed = {key: value for key, value in arguments.items() if key == "device_map"}
    how = {"config": model.config, "dtype": model.dtype, **placed, **quantized}
    return built(type(model), model.state_dict(), how)


def _adapter_folder(checkpoint: Checkpoint) -> Path:
    assert checkpoint.adapter is not None
    folder = local_folder(checkpoint.adapter)
    assert folder is not None, "an adapter is a folder"
    return folder


@contextmanager
def _errors_as_sentences(spec: ModelSpec) -> Iterator[None]:
    try:
        yield
    except SpecError:
        raise
    except MemoryError as error:
        raise _too_large(spec) from error
    except _READING_FAILS as error:
        if out_of_memory(error):
            raise _too_large(spec) from error
        raise SpecError(
            f"model={spec.name} must be a causal model that Transformers loads "
            f"(model.path={spec.path}, model.attn_implementation={spec.attn_implementation}): "
            f"{error}"
        ) from error


def _too_large(spec: ModelSpec) -> SpecError:
    return SpecError(
        f"there is not enough memory to load model={spec.name} (model.path={spec.path}): take a "
        "smaller model, quantization=bf16 or bnb_nf4, or backend.device_map=auto, which spreads it "
        "over all GPUs and main memory"
    )


@contextmanager
def quietly() -> Iterator[None]:
    """Without Transformers' bars and its table of tensors, which `refuse_incomplete` replaces."""
    level = transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
