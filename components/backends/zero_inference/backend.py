"""Models that fit no GPU, by DeepSpeed's ZeRO-3: each rank keeps a slice of every weight.

A layer's weights are gathered from all ranks, or from the processor's memory or a disk, when it is
computed, and dropped again. Every rank computes rows of its own; the decoder is the reference one.
"""

import dataclasses
import importlib.metadata
import logging
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel
from transformers.integrations.deepspeed import HfDeepSpeedConfig

from components.backends.hf.backend import HfBackend
from components.backends.zero_inference.checkpoint_loading import (
    load_slices,
    refuse_tag,
    refuse_way,
)
from components.backends.zero_inference.settings import engine_settings, settings_of
from components.models.checkpoint import Checkpoint, prepare_tokenizer
from components.models.loading import LoadableQuantization, empty_model
from components.models.source_content import foreign_hash, is_zero
from components.models.zero_universal import universal_folder
from components.quantization.precision import Precision
from components.ranks.place import place
from pipeline.spec import ModelSpec, SpecError, require

_INSTALL = "pip install --no-build-isolation -e '.[distributed]'"


class DeepSpeedBackend(HfBackend):
    """Generates with ZeRO-3 on the ranks of torchrun, `deepspeed` or a Slurm job."""

    name = "deepspeed"
    capabilities = dataclasses.replace(HfBackend.capabilities, scores=False)

    def __init__(
        self,
        model: ModelSpec,
        quantization: LoadableQuantization,
        cache_dir: str | None = None,
        device: str = "auto",
        batch_size: int = 8,
        use_cache: bool = True,
        threads: int | None = None,
        load_checkpoint: str = "consolidated",
        config: Mapping[str, Any] | str | None = None,
    ) -> None:
        """Check the arguments; nothing is loaded.

        Args:
            model: which weights, tokenizer and template.
            quantization: none, fp32, bf16 or fp16: ZeRO gathers plain numbers.
            cache_dir: where converted models are kept (`run.cache_dir`).
            device: auto, cpu or cuda; of several GPUs each rank takes one.
            batch_size: rows of a batch on each rank.
            use_cache: keep keys and values; without, a step reads the whole row again.
            threads: CPU threads; None: as many as this process may use.
            load_checkpoint: how a training checkpoint of ZeRO is loaded. consolidated: put
                together in the cache, as other backends load it; engine: as many ranks as saved it
                read each its own slices; universal: any number of ranks read theirs of a universal
                checkpoint in the cache.
            config: DeepSpeed's own configuration, as a mapping or the path of a JSON file.
        """
        rule = (
            "be none, fp32, bf16 or fp16 with backend.name=deepspeed, which gathers plain numbers"
        )
        require(isinstance(quantization, Precision), "quantization", rule, quantization.name)
        super().__init__(
            model,
            quantization,
            cache_dir,
            device,
            batch_size,
            decoder="generate",
            use_cache=use_cache,
            threads=threads,
        )
        self._settings = settings_of(config)
        refuse_way(load_checkpoint, self._settings)
        self._way = load_checkpoint
        self._alive: HfDeepSpeedConfig | None = None
        self._engine: Any = None
        self._spread_over(place(), split=True)

    async def discover(self) -> None:
        """Meet the other ranks, who all see that they can load the checkpoint."""
        if place().world > 1:  # one may merely name points for many
            self._refuse_tag()
        await super().discover()

    def identity(self) -> dict[str, Any]:
        """As the hf backend's, whose numbers these are."""
        return super().identity() | {"backend": self.name}

    def describe(self) -> dict[str, Any]:
        """As the hf backend's, with DeepSpeed's version and configuration."""
        about = super().describe()
        about["versions"] |= {"deepspeed": importlib.metadata.version("deepspeed")}
        return {**about, "deepspeed": self._settings, "load_checkpoint": self._way}

    def _load_model(self) -> PreTrainedModel:
        """The module of a ZeRO-3 engine, whose weights are cut as they are read.

        Raises:
            SpecError: DeepSpeed is not installed.
        """
        try:
            import deepspeed
        except ImportError as error:
            raise SpecError(f"backend=deepspeed needs DeepSpeed: {_INSTALL}") from error
        self._refuse_tag()
        logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
        warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
        assert self._spread is not None
        self._spread.lockstep()  # the process group is there, alone too
        deepspeed.init_distributed(dist_backend="nccl" if self._device.type == "cuda" else "gloo")
        dtype = self.identity()["dtype"]
        settings = engine_settings(self._settings, "float32" if dtype == "checkpoint" else dtype)
        make: Any = HfDeepSpeedConfig
        self._alive = make(settings)  # while it lives, a model is cut as it is made
        sliced = self._way != "consolidated"
        given = self._ready(), self._spec, self._quantization, self._device
        model = empty_model(*given) if sliced else super()._load_model()
        if not hasattr(next(model.parameters()), "ds_numel"):
            raise RuntimeError("the weights were not cut over the ranks: DeepSpeed has changed")
        if sliced:
            self._load_slices(model, settings)
        self._engine = deepspeed.initialize(model=model, config=settings)[0]
        self._engine.eval()
        module: PreTrainedModel = self._engine.module
        return module

    def _ready(self) -> Checkpoint:
        """The checkpoint in folders that Transformers reads, but for weights in slices."""
        if self._way == "consolidated":
            return super()._ready()
        self._resolved = prepare_tokenizer(self._checkpoint(), self._cache)
        return self._resolved

    def _refuse_tag(self) -> None:
        """Refuse a checkpoint that these ranks cannot load. Raises SpecError."""
        if self._way == "consolidated":
            return
        weights = self._checkpoint().weights
        tag = Path(weights.location) if is_zero(weights) else None
        refuse_tag(self._way, tag, self._spec.path, place())

    def _load_slices(self, model: PreTrainedModel, settings: Mapping[str, Any]) -> None:
        weights = self._checkpoint().weights
        tag, universal = Path(weights.location), None
        if self._way == "universal":
            universal = universal_folder(tag, foreign_hash(weights, self._cache), self._cache)
        load_slices(model, settings, tag, place(), universal)

    def _placement(self) -> dict[str, Any]:
        return {}

    def _unload(self) -> None:
        if self._engine is not None:
            self._engine.destroy()
        self._engine = self._alive = None
        super()._unload()
