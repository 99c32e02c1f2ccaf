"""What is asked of Transformers to spread a model over devices or ranks, and what it refuses."""

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


def tensor_parallel(ranks: int) -> dict[str, Any]:
    """Arguments of `from_pretrained` for weights that are cut over ranks.

    Raises:
        SpecError: there is one rank only.
    """
    if ranks == 1:
        raise SpecError(
            "backend.tp_plan=auto needs several ranks, one for each GPU: start the command with "
            "torchrun --nproc-per-node=<GPUs> in place of python"
        )
    from transformers.distributed.configuration_utils import DistributedConfig

    return {"distributed_config": DistributedConfig(tp_size=ranks)}
