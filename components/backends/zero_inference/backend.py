"""Models that fit no GPU, by DeepSpeed's ZeRO-3: each rank keeps a slice of every weight.

A layer's weights are gathered from all ranks, or from the processor's memory or a disk, when it is
computed, and dropped again. Every rank computes rows of its own; the decoder is the reference one.
"""

import dataclasses
import importlib.metadata
import logging
import warnings
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedModel
from transformers.integrations.deepspeed import HfDeepSpeedConfig

from components.backends.hf.backend import HfBackend
from components.backends.zero_inference.settings import engine_settings, settings_of
from components.models.loading import LoadableQuantization
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
        self._alive: HfDeepSpeedConfig | None = None
        self._engine: Any = None
        self._spread_over(place(), split=True)

    def identity(self) -> dict[str, Any]:
        """As the hf backend's, whose numbers these are."""
        return super().identity() | {"backend": self.name}

    def describe(self) -> dict[str, Any]:
        """As the hf backend's, with DeepSpeed's version and configuration."""
        about = super().describe()
        about["versions"] |= {"deepspeed": importlib.metadata.version("deepspeed")}
        return {**about, "deepspeed": self._settings}

    def _load_model(self) -> PreTrainedModel:
        """The module of a ZeRO-3 engine, whose weights are cut as they are read.

        Raises:
            SpecError: DeepSpeed is not installed.
        """
        try:
            import deepspeed
        except ImportError as error:
            raise SpecError(f"backend=deepspeed needs DeepSpeed: {_INSTALL}") from error
        logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
        warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
        assert self._spread is not None
        self._spread.lockstep()  # the process group is there, alone too
        deepspeed.init_distributed(dist_backend="nccl" if self._device.type == "cuda" else "gloo")
        dtype = self.identity()["dtype"]
        settings = engine_settings(self._settings, "float32" if dtype == "checkpoint" else dtype)
        make: Any = HfDeepSpeedConfig
        self._alive = make(settings)  # while it lives, a model is cut as it is made
        model = super()._load_model()
        if not hasattr(next(model.parameters()), "ds_numel"):
            raise RuntimeError("the weights were not cut over the ranks: DeepSpeed has changed")
        self._engine = deepspeed.initialize(model=model, config=settings)[0]
        self._engine.eval()
        module: PreTrainedModel = self._engine.module
        return module

    def _placement(self) -> dict[str, Any]:
        return {}

    def _unload(self) -> None:
        if self._engine is not None:
            self._engine.destroy()
        self._engine = self._alive = None
        super()._unload()
