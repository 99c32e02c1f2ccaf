"""The base model of several adapters, read once for the points of a sweep that follow another."""

import logging
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from components.models.main_memory import free_main_memory
from components.models.tensors import refuse_incomplete

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class SharedBase:
    """The weights of a base model as they were read, in main memory.

    Whoever loads first leaves them here; whoever comes next builds its model from them. Decoders
    and merged adapters change the model that they are given, never these tensors. They are freed
    with the last backend that holds this.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    dtype: Any = None
    model_class: Any = None
    generation_config: Any = None

    def keep(self, model: PreTrainedModel) -> None:
        """Copy the weights of a model that was just read, tied ones once.

        Those that are stored quantized are left to their files, and so are all where main memory
        does not have room for them twice.
        """
        named = model.state_dict()
        held = {_place(tensor): tensor for tensor in named.values()}
        size = sum(tensor.nbytes for tensor in held.values())
        if getattr(model, "hf_quantizer", None) is not None or 2 * size > free_main_memory():
            _LOG.info("the base model is not kept in memory: the next point reads it again")
            return
        copies = {key: tensor.detach().to("cpu", copy=True) for key, tensor in held.items()}
        self.tensors = {name: copies[_place(tensor)] for name, tensor in named.items()}
        self.dtype, self.model_class = model.dtype, type(model)
        self.generation_config = model.generation_config

    def model(self, arguments: dict[str, Any]) -> PreTrainedModel:
        """A model with these weights, as `from_pretrained` with these arguments makes it."""
        _LOG.info("the base model is in memory already: its files are not read again")
        made = built(self.model_class, self.tensors, arguments | {"dtype": self.dtype})
        made.generation_config = self.generation_config
        return made


def _place(tensor: Tensor) -> tuple[Any, ...]:
    """Equal for tied weights; views of one storage, and empty tensors, may share an address."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def built(
    model_class: Any, tensors: dict[str, Tensor], arguments: dict[str, Any]
) -> PreTrainedModel:
    """A model of a class of Transformers from tensors by name, every one of them used.

    Raises:
        SpecError: a tensor is missing, unexpected or of another shape.
    """
    known = ("config", "device_map", "dtype", "attn_implementation", "quantization_config")
    model, loading = model_class.from_pretrained(
        None,
        state_dict=tensors,
        output_loading_info=True,
        **{key: value for key, value in arguments.items() if key in known},
    )
    refuse_incomplete(loading, "the model in memory")
    assert isinstance(model, PreTrainedModel)
    return model
