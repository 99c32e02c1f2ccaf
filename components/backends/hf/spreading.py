"""What is asked of Transformers to spread a model over devices or ranks, and what it refuses."""

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedModel

from pipeline.spec import SpecError, require

DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")


def refuse_beside_spreading(
    device_map: str | None, tp_plan: str | None, device: str, decoder: str, slots: int | None
) -> None:
    """Refuse what does not go with `backend.device_map` or `backend.tp_plan`.

    Raises:
        SpecError: names the key.
    """
    known = device_map is None or device_map in DEVICE_MAPS
    require(known, "backend.device_map", f"be null or one of {DEVICE_MAPS}", device_map)
    require(tp_plan in (None, "auto"), "backend.tp_plan", "be null or auto", tp_plan)
    key = "tp_plan" if device_map is None else "device_map"
    alone = device_map is None or tp_plan is None
    require(alone, "backend.tp_plan", "be null with backend.device_map", tp_plan)
    spread = f"with backend.{key}, which places the weights"
    require(device in ("auto", "cpu"), "backend.device", f"be auto {spread}", device)
    rule = f"be auto or generate with backend.{key}: slots needs all layers on one device"
    require(decoder != "slots", "backend.decoder", rule, decoder)
    rule = f"be null with backend.{key}, which decodes batches of backend.batch_size"
    require(slots is None, "backend.slots", rule, slots)


def most_of_places(
    device_map: str | None, max_memory: Mapping[Any, Any] | None
) -> dict[str, dict[int | str, Any]]:
    """The argument `max_memory` of `from_pretrained`; none where `backend.max_memory` is null.

    Args:
        device_map: `backend.device_map`, without which nothing is spread.
        max_memory: bytes, or text such as 20GiB, by the number of a GPU or `cpu`.

    Raises:
        SpecError: a place or a size that there is not.
    """
    if max_memory is None:
        return {}
    rule = "be null without backend.device_map: nothing is spread"
    require(device_map is not None, "backend.max_memory", rule, dict(max_memory))
    most: dict[int | str, Any] = {}
    for place, size in max_memory.items():
        known = place == "cpu" or str(place).isdigit()
        require(known, "backend.max_memory", "name GPUs by number, and cpu", place)
        fits = isinstance(size, str) or (isinstance(size, int) and size > 0)
        require(fits, f"backend.max_memory.{place}", "be bytes, or text such as 20GiB", size)
        most[int(place) if str(place).isdigit() else "cpu"] = size
    return {"max_memory": most}


def spread_report(model: PreTrainedModel) -> dict[str, Any]:
    """Bytes of the weights on all ranks together, and of this rank's part, by type."""
    weights: list[Any] = list(model.parameters())
    kind = str(model.dtype).removeprefix("torch.")
    whole = [int(getattr(weight, "ds_numel", weight.numel())) for weight in weights]
    sizes = [weight.element_size() for weight in weights]
    own = [_own(weight).numel() * size for weight, size in zip(weights, sizes, strict=True)]
    return {
        "bytes": {kind: sum(n * size for n, size in zip(whole, sizes, strict=True))},
        "bytes_of_rank": {kind: sum(own)},
        "parameters": sum(whole),
    }


def _own(weight: Any) -> Any:
    """This rank's part of a weight that tensor parallel (DTensor) or ZeRO has cut."""
    if hasattr(weight, "to_local"):
        return weight.to_local()
    return getattr(weight, "ds_tensor", weight)


def tensor_parallel(ranks: int, config: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `from_pretrained` for weights that are cut over ranks.

    Args:
        ranks: how many.
        config: what the model's config.json holds.

    Raises:
        SpecError: there is one rank only, or its heads cannot be dealt to the ranks.
    """
    if ranks == 1:
        raise SpecError(
            "backend.tp_plan=auto needs several ranks, one for each GPU: start the command with "
            "torchrun --nproc-per-node=<GPUs> in place of python"
        )
    sizes = config.get("text_config") or config
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = sizes.get(name)
        if isinstance(heads, int) and heads % ranks:
            raise SpecError(
                f"backend.tp_plan=auto deals heads to ranks, and {name}={heads} is no multiple of "
                f"{ranks}: start as many ranks as divide it, or set backend.device_map=auto"
            )
    from transformers.distributed.configuration_utils import DistributedConfig

    return {"distributed_config": DistributedConfig(tp_size=ranks)}


def refuse_uncut(model: PreTrainedModel) -> None:
    """Refuse a model of which every rank holds all. Raises SpecError."""
    if not any(hasattr(weight, "to_local") for weight in model.parameters()):
        raise SpecError(
            f"backend.tp_plan must be null for {type(model).__name__}, for which Transformers has "
            "no plan: every rank would hold all of it; backend.device_map=auto spreads its layers"
        )
