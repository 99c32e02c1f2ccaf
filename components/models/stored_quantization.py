"""Checkpoints whose weights are stored quantized, as another tool or library made them."""

import importlib.util
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

from components.models.weight_files import method_in
from pipeline.spec import SpecError

# What Transformers reads a method with: the modules that it imports, and how they are installed.
_EXTRA = "pip install 'rethink-pipeline[quantization]'"
_GPTQMODEL = "pip install gptqmodel optimum (docs/models.md says which versions)"
_READERS: dict[str, tuple[tuple[str, ...], str]] = {
    "gptq": (("gptqmodel", "optimum"), _GPTQMODEL),
    "awq": (("gptqmodel",), _GPTQMODEL),
    "compressed-tensors": (("compressed_tensors",), _EXTRA),
    "bitsandbytes": (("bitsandbytes",), _EXTRA),
    "torchao": (("torchao",), _EXTRA),
}
_BITSANDBYTES = "bitsandbytes"  # Transformers knows it by two names, with its bits
_INSTEAD = (
    "or take the weights that they were made from, with quantization=bnb_nf4, torchao_int8wo or "
    "their kin, or a GGUF file (model.path=FILE.gguf)"
)


def stored_quantization(config: PreTrainedConfig) -> str | None:
    """How a model's weights are quantized (`gptq`, `awq`, ...), or None."""
    stored = getattr(config, "quantization_config", None)
    if stored is None:
        return None
    return method_in(stored if isinstance(stored, dict) else stored.to_dict())


def refuse_unreadable(stored: str | None) -> None:
    """Refuse weights that nothing here reads, before anything is loaded.

    Args:
        stored: what `stored_quantization` found.

    Raises:
        SpecError: Transformers does not know the method, or a package that it needs is missing.
    """
    if stored is None:
        return
    if stored not in AUTO_QUANTIZER_MAPPING and stored != _BITSANDBYTES:
        known = sorted(AUTO_QUANTIZER_MAPPING)
        raise SpecError(
            f"model.path must name weights that Transformers reads, and these are stored quantized "
            f"as {stored}, which is none of {known}: take the weights that they were made from"
        )
    modules, install = _READERS.get(stored, ((), ""))
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise SpecError(
            f"model.path names weights that are stored quantized ({stored}), which Transformers "
            f"reads with {' and '.join(missing)}: {install}, {_INSTEAD}"
        )


def settle(model: PreTrainedModel) -> None:
    """Do now what a library puts off until the first forward pass.

    compressed-tensors makes floating-point weights of all that it reads then, and the report of a
    model's weights is to say what it computes with. Activations are still rounded as stored.
    """
    if hasattr(model, "ct_decompress_hook"):
        quantizer: Any = model.hf_quantizer
        quantizer.compressor.decompress_model(model)
